"""`ggmlpy generate`: the text on stdout, everything else on stderr."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ggmlpy import packaged
from ggmlpy.errors import MissingFile
from ggmlpy.llama import Llama
from tests.cli.conftest import Outcome, Run, write_endless
from tests.models.tiny import Tiny, byte_vocabulary, write_model
from tests.shared import shared_path

REFERENCE = ("--backend", "reference")
AGAIN = "abababababab"  # a repetition in the prompt


def written(run: Run, model: Path, *args: object, **more: Any) -> Outcome:
    outcome = run("generate", "-m", model, *REFERENCE, *args, **more)
    assert outcome.code == 0, outcome
    return outcome


def text_of(model: Path, prompt: str, **options: Any) -> str:
    """What the engine itself writes."""
    with Llama(model, backend="reference") as llm:
        text: str = llm(prompt, **options)["choices"][0]["text"]
    return text


@pytest.mark.parametrize("i", range(3))
def test_greedy_text_is_llama_cpps(run: Run, i: int) -> None:
    model = shared_path("stories260K.gguf")
    case = json.loads(shared_path("reference/greedy.json").read_text())[i]
    args = ("-p", case["prompt"], "-n", case["n"], "--temp", 0, "-ctk", "f32", "-ctv", "f32")
    for more in ((), ("-fa", "off", "-ub", 2)):
        outcome = written(run, model, *args, *more)
        assert outcome.out.rstrip("\n") == case["prompt"] + case["text"].rstrip("\n")


@pytest.mark.parametrize(
    ("flag", "name", "value"),
    [
        ("--temp", "temperature", 3.0),
        ("--top-k", "top_k", 2),
        ("--top-p", "top_p", 0.2),
        ("--min-p", "min_p", 0.8),
        ("--typical", "typical_p", 0.1),
        ("--repeat-penalty", "repeat_penalty", 3.0),
        ("--frequency-penalty", "frequency_penalty", 3.0),
        ("--presence-penalty", "presence_penalty", 4.0),
        ("--top-nsigma", "top_n_sigma", 0.2),
        ("--dynatemp-range", "dynatemp_range", 0.8),
        ("--mirostat", "mirostat_mode", 1),
        ("--mirostat", "mirostat_mode", 2),
    ],
)
def test_each_sampling_option_reaches_the_engine(
    run: Run, tiny: Path, flag: str, name: str, value: float
) -> None:
    outcome = written(run, tiny, "-p", "ab", "-n", 16, "--seed", 3, "--json", flag, value)
    text = json.loads(outcome.out)["text"]
    assert text == text_of(tiny, "ab", max_tokens=16, seed=3, **{name: value})
    assert text != text_of(tiny, "ab", max_tokens=16, seed=3)


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (
            "--xtc-probability 1 --xtc-threshold 0.05",
            {"xtc_probability": 1.0, "xtc_threshold": 0.05},
        ),
        (
            "--dynatemp-range 0.7 --dynatemp-exp 3",
            {"dynatemp_range": 0.7, "dynatemp_exponent": 3.0},
        ),
        (
            "--dry-multiplier -40 --dry-base 2 --dry-allowed-length 1",
            {"dry_multiplier": -40.0, "dry_base": 2.0, "dry_allowed_length": 1},
        ),
        (
            "--dry-multiplier 4 --dry-allowed-length 0 --dry-penalty-last-n 3",
            {"dry_multiplier": 4.0, "dry_allowed_length": 0, "dry_penalty_last_n": 3},
        ),
        (
            "--dry-multiplier 4 --dry-allowed-length 0 --dry-sequence-breaker none",
            {"dry_multiplier": 4.0, "dry_allowed_length": 0, "dry_sequence_breakers": []},
        ),
        (
            "--mirostat 2 --mirostat-lr 0.9 --mirostat-ent 1",
            {"mirostat_mode": 2, "mirostat_eta": 0.9, "mirostat_tau": 1.0},
        ),
        (
            "--samplers top_k;adaptive_p --adaptive-target 0.2 --adaptive-decay 0.3",
            {"samplers": ["top_k", "adaptive_p"], "adaptive_target": 0.2, "adaptive_decay": 0.3},
        ),
        ("--sampler-seq t --repeat-last-n 1", {"samplers": ["temperature"]}),
        (
            "--presence-penalty 4 --repeat-last-n 1",
            {"presence_penalty": 4.0, "penalty_last_n": 1},
        ),
    ],
)
def test_options_of_samplers_are_those_parameters(
    run: Run, tiny: Path, given: str, options: dict[str, Any]
) -> None:
    outcome = written(run, tiny, "-p", AGAIN, "-n", 24, "--seed", 3, "--json", *given.split())
    text = json.loads(outcome.out)["text"]
    assert text == text_of(tiny, AGAIN, max_tokens=24, seed=3, **options)
    assert text != text_of(tiny, AGAIN, max_tokens=24, seed=3)


def test_only_the_text_is_on_stdout(run: Run, tiny: Path) -> None:
    outcome = written(run, tiny, "-p", "ab", "-n", 6, "--temp", 0)
    text = text_of(tiny, "ab", max_tokens=6, temperature=0)
    assert outcome.out.rstrip("\n") == ("ab" + text).rstrip("\n")
    assert outcome.out.endswith("\n")
    assert outcome.err.startswith("prompt 3 tokens, ")
    assert outcome.err.count("\n") == 1
    without = written(run, tiny, "-p", "ab", "-n", 6, "--temp", 0, "--no-echo", "-q")
    assert without.out.rstrip("\n") == text.rstrip("\n")
    assert without.err == ""


def test_a_seed_that_was_told_gives_the_text_again(run: Run, tiny: Path) -> None:
    first = written(run, tiny, "-p", "ab", "-n", 12, "--temp", 2)
    seed = first.err.split("seed ")[1].strip()
    assert written(run, tiny, "-p", "ab", "-n", 12, "--temp", 2, "-s", seed).out == first.out
    other = written(run, tiny, "-p", "ab", "-n", 12, "--temp", 2)
    assert other.out != first.out


def test_where_nothing_is_drawn_no_seed_is_told(run: Run, tiny: Path) -> None:
    args = ("-p", "ab", "-n", 3, "-s", 5)
    assert written(run, tiny, *args).err.rstrip().endswith("; seed 5")
    assert "seed" not in written(run, tiny, *args, "--temp", 0).err
    assert json.loads(written(run, tiny, *args, "--temp", 0, "--json").out)["seed"] is None


def test_json(run: Run, tiny: Path) -> None:
    outcome = written(run, tiny, "-p", "ab", "-n", 5, "--seed", 1, "--json")
    assert outcome.out.count("\n") == 1
    assert outcome.err == ""
    told = json.loads(outcome.out)
    assert told["model"] == "tiny.gguf"
    assert told["prompt"] == "ab"
    assert told["text"] == text_of(tiny, "ab", max_tokens=5, seed=1)
    assert (told["seed"], told["finish_reason"]) == (1, "length")
    assert (told["n_prompt"], told["n_generated"]) == (3, 5)
    assert told["timings"]["generation_rate"] > 0


def test_json_tells_the_tokens(run: Run, tiny: Path) -> None:
    told = json.loads(written(run, tiny, "-p", "ab", "-n", 5, "--temp", 0, "--json").out)
    with Llama(tiny, backend="reference") as llm:
        assert told["prompt_tokens"] == llm.tokenize("ab")
        tokens = list(told["prompt_tokens"])
        for token in told["tokens"]:
            assert token == llm.logits(tokens)[-1].argmax()
            tokens.append(token)
        assert llm.detokenize(told["tokens"]) == told["text"]
    assert len(told["tokens"]) == told["n_generated"] == 5


def test_stop_strings(run: Run, tiny: Path) -> None:
    whole = text_of(tiny, "ab", max_tokens=20, seed=5)
    stop = whole[4:6]
    cut = written(
        run, tiny, "-p", "ab", "-n", 20, "-s", 5, "--json", "--stop", "no such", "-r", stop
    )
    told = json.loads(cut.out)
    assert told["text"] == whole[: whole.index(stop)]
    assert told["finish_reason"] == "stop"


@pytest.mark.parametrize("prompt", ["a ä\n\nb", "x", ""])
def test_the_prompt_from_everywhere(run: Run, tiny: Path, tmp_path: Path, prompt: str) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(prompt + "\n", encoding="utf-8")
    settings = ("-n", 4, "--temp", 0, "--json")
    given = written(run, tiny, "-p", prompt, *settings)
    assert json.loads(given.out)["prompt"] == prompt
    for outcome in (
        written(run, tiny, "-f", file, *settings),
        written(run, tiny, "-p", "-", *settings, stdin=prompt + "\n"),
        written(run, tiny, "-f", "-", *settings, stdin=prompt),
    ):
        told = json.loads(outcome.out)
        assert (told["prompt"], told["text"]) == (prompt, json.loads(given.out)["text"])


def test_the_context_may_end_the_text(run: Run, tmp_path: Path) -> None:
    model = write_endless(tmp_path / "short.gguf", Tiny(n_ctx=16))
    full = "ggmlpy: warning: stopped after 14 tokens: the context of 16 is full"
    for n, larger in ((-1, "N"), (50, "53")):
        outcome = written(run, model, "-p", "ab", "-n", n, "-s", 1, "-q")
        shift = "--context-shift goes on without older tokens"
        assert outcome.err == f"{full}; -c {larger} makes it larger, {shift}\n"
    assert written(run, model, "-p", "ab", "-n", 14, "-s", 1, "-q").err == ""


def test_a_context_shift_goes_on(run: Run, tmp_path: Path) -> None:
    model = write_endless(tmp_path / "short.gguf", Tiny(n_ctx=16))
    settings = ("-p", "ab", "--temp", 0, "-q", "--no-echo", "--json", "--context-shift")
    told = {}
    for keep in (0, 2, -1):
        outcome = written(run, model, *settings, "-n", 60, "--keep", keep)
        told[keep] = json.loads(outcome.out)
        assert (len(told[keep]["tokens"]), outcome.err) == (60, "")
        with Llama(model, backend="reference") as llm:
            options: dict[str, Any] = {"context_shift": True, "n_keep": keep, "temperature": 0}
            made = llm.create_completion("ab", max_tokens=60, **options)
        assert told[keep]["text"] == made["choices"][0]["text"]
    assert told[0]["text"] != told[2]["text"]
    until_full = written(run, model, *settings, "-n", -2)
    assert (len(json.loads(until_full.out)["tokens"]), until_full.err) == (14, "")
    assert "-2 is not at least 0, nor -1" in run("generate", "--keep", -2).usage_error


def test_verbose_tells_of_the_model_and_all_timings(run: Run, tiny: Path) -> None:
    outcome = written(run, tiny, "-p", "ab", "-n", 3, "-v", "-ctk", "f32", "-c", 64)
    assert "tiny.gguf: llama, 2 layers" in outcome.err
    assert re.search(r"n_ctx_seq +64 tokens, the most of one \(trained with 128\)", outcome.err)
    assert "K f32 " in outcome.err
    assert [line.split(":")[0].strip() for line in outcome.err.splitlines()[-4:]] == [
        "load", "prompt", "decode", "sample",
    ]  # fmt: skip


def test_more_context_than_trained_is_a_warning(run: Run, tiny: Path) -> None:
    outcome = written(run, tiny, "-p", "ab", "-n", 2, "-c", 500, "-q")
    assert outcome.err == (
        "ggmlpy: warning: n_ctx is 500, the model was trained with 128:"
        " text beyond that may not make sense\n"
    )


def test_without_a_model_the_packaged_one_runs(
    run: Run, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    shutil.copy(tiny, tmp_path / "data" / "stories.gguf")
    monkeypatch.setattr(packaged, "files", lambda package: tmp_path)
    outcome = run("generate", *REFERENCE, "--json", "-s", 1)
    told = json.loads(outcome.out)
    assert told["prompt"] == "Once upon a time"
    assert told["n_generated"] > 100  # the context of 128, not the 128 tokens of other models
    assert "context of 128 is full" in outcome.err


def test_the_packaged_model_tells_a_story(run: Run) -> None:
    try:
        packaged.packaged_model()
    except MissingFile as error:
        pytest.skip(str(error))
    outcome = run("generate", "--temp", 0, "-n", 40)
    assert outcome.code == 0
    assert outcome.out.startswith("Once upon a time")
    assert len(outcome.out.split()) > 20


def test_no_end_of_the_text(run: Run, tiny: Path, tmp_path: Path) -> None:
    """`--ignore-eos` makes the tokens that end a text impossible, `--logit-bias` any."""
    with Llama(tiny, backend="reference") as llm:
        [eos] = llm.tokenizer.eog_ids
        first = llm.create_completion("a", max_tokens=1, temperature=0, logprobs=1)
    plain = ("-p", "a", "-n", 4, "--temp", 0, "-q", "--json")
    made = json.loads(written(run, tiny, *plain, "-l", f"{eos}+100").out)
    assert (made["tokens"], made["finish_reason"]) == ([], "stop")
    ignored = json.loads(written(run, tiny, *plain, "-l", f"{eos}+100", "--ignore-eos").out)
    assert (len(ignored["tokens"]), ignored["finish_reason"]) == (4, "length")
    token = json.loads(written(run, tiny, *plain).out)["tokens"][0]
    assert first["choices"][0]["text"]
    banned = json.loads(written(run, tiny, *plain, "--logit-bias", f"{token}-inf").out)
    assert token not in banned["tokens"]
    forced = json.loads(written(run, tiny, *plain, "-l", "70+60", "-l", "70+40").out)
    assert forced["tokens"] == [70] * 4
    error = run("generate", "-m", tiny, *REFERENCE, "-l", "999999+1", "-p", "a", "--no-echo").error
    assert "999999" in error


@pytest.mark.parametrize("bias", ["x+1", "5", "5+", "-5+1", "5+a", "5=1"])
def test_biases_that_are_none(run: Run, bias: str) -> None:
    error = run("generate", f"--logit-bias={bias}").usage_error
    assert f"'{bias}' is not TOKEN+BIAS or TOKEN-BIAS" in error


def test_escapes(run: Run, tiny: Path, tmp_path: Path) -> None:
    """llama.cpp's; in -p by default, elsewhere where they are asked for."""

    def prompt_of(*given: object, stdin: str | None = None) -> str:
        made = written(run, tiny, *given, "-n", 1, "-q", "--json", stdin=stdin)
        prompt: str = json.loads(made.out)["prompt"]
        return prompt

    text, meant = r"a\nb\t\'\"\\n\xc3\xa9\x4\q", "a\nb\t'\"\\n\u00e9\\x4\\q"
    file = tmp_path / "prompt"
    file.write_text(text + "\n")
    assert prompt_of("-p", text) == prompt_of("-p", text, "-e") == meant
    assert prompt_of("-p", text, "--no-escape") == text
    assert prompt_of("-f", file) == prompt_of("-p", "-", stdin=text) == text
    assert prompt_of("-f", file, "--escape") == meant
    assert prompt_of("-p", "-", "-e", stdin=text) == meant
    assert prompt_of("-bf", file) == text + "\n"
    both = run("generate", "-f", file, "-bf", file).usage_error
    assert both == "-f and -bf cannot be used together"


def test_the_speed_of_one_token(run: Run, tiny: Path) -> None:
    err = written(run, tiny, "-p", "a", "-n", 1, "--temp", 0).err
    assert "; text 1 token; load " in err


def test_names_of_llama_cpp(run: Run, tiny: Path) -> None:
    plain = written(run, tiny, "-p", "a", "-n", 6, "--temp", 0, "-q", "--no-echo")
    again = written(
        run, tiny, "-p", "a", "--predict", 6, "--temperature", 0, "-q", "--no-display-prompt"
    )
    assert again.out == plain.out
    letter = plain.out[2]
    stopped = written(
        run, tiny, "-p", "a", "-n", 6, "--temp", 0, "-q", "--no-echo", "--reverse-prompt", letter
    )
    assert stopped.out.rstrip("\n") == plain.out.partition(letter)[0].rstrip("\n")


def test_control_tokens_may_be_shown(run: Run, tmp_path: Path) -> None:
    """All but the one that ends the text."""
    tokens = byte_vocabulary(Tiny().n_vocab)["tokenizer.ggml.tokens"]
    types = list(byte_vocabulary(Tiny().n_vocab)["tokenizer.ggml.token_type"])
    control = 270
    tokens = [*tokens[:control], "<|mark|>", *tokens[control + 1 :]]
    types[control] = 3
    changes = {"tokenizer__ggml__tokens": tokens, "tokenizer__ggml__token_type": types}
    model = write_model(tmp_path / "control.gguf", Tiny(), **changes)
    common = ("-p", "a", "-n", 2, "--temp", 0, "-q", "--no-echo", "-l", f"{control}+500")
    assert written(run, model, *common).out == "\n"
    assert written(run, model, *common, "--special").out == "<|mark|><|mark|>\n"
    ends = ("-p", "a", "-n", 2, "--temp", 0, "-q", "--no-echo", "-l", "2+500", "-sp")
    assert written(run, model, *ends).out == "\n"

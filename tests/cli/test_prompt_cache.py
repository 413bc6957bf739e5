"""`--prompt-cache`: a prompt that is in the file is not run again, and the text is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ggmlpy.llama import Llama
from ggmlpy.memory.llama_state import LlamaState
from tests.cli.conftest import Run
from tests.models.tiny import Tiny, write_model

PROMPT = "a long prompt, of which all but the end is cached"
SETTINGS = ("--backend", "reference", "--temp", 0, "-n", 6, "-q", "--json")


def generated(run: Run, model: Path, *args: object) -> dict[str, Any]:
    outcome = run("generate", "-m", model, *SETTINGS, *args)
    assert (outcome.code, outcome.err) == (0, "")
    told: dict[str, Any] = json.loads(outcome.out)
    return told


def test_a_cached_prompt_is_not_run_again(run: Run, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.cache"
    plain = generated(run, tiny, "-p", PROMPT)
    n = len(plain["prompt_tokens"])
    for n_run in (n, 1):  # the last token is run for its logits
        told = generated(run, tiny, "-p", PROMPT, "--prompt-cache", file)
        assert (told["text"], told["n_prompt"]) == (plain["text"], n_run)
    assert LlamaState.read(file).tokens == {0: plain["prompt_tokens"]}
    longer = generated(run, tiny, "-p", PROMPT + ", more", "--prompt-cache", file)
    assert longer["n_prompt"] == len(", more")
    assert longer["text"] == generated(run, tiny, "-p", PROMPT + ", more")["text"]
    assert LlamaState.read(file).tokens == {0: longer["prompt_tokens"]}


def test_no_text_fills_the_cache_only(run: Run, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.cache"
    plain = generated(run, tiny, "-p", PROMPT)
    told = generated(run, tiny, "-p", PROMPT, "--prompt-cache", file, "-n", 0)
    assert (told["text"], told["tokens"], told["n_generated"]) == ("", [], 0)
    assert LlamaState.read(file).tokens == {0: plain["prompt_tokens"][:-1]}
    told = generated(run, tiny, "-p", PROMPT, "--prompt-cache", file)
    assert (told["text"], told["n_prompt"]) == (plain["text"], 1)
    error = run("chat", "-m", tiny, "-n", 0).usage_error
    assert error == "-n 0 would leave every message without an answer"


def test_a_prompt_that_begins_otherwise_takes_its_place(
    run: Run, tiny: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prompt.cache"
    generated(run, tiny, "-p", PROMPT, "--prompt-cache", file)
    told = generated(run, tiny, "-p", "other", "--prompt-cache", file)
    assert told["text"] == generated(run, tiny, "-p", "other")["text"]
    assert LlamaState.read(file).tokens == {0: told["prompt_tokens"]}


def test_a_shorter_prompt_leaves_the_file(run: Run, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.cache"
    generated(run, tiny, "-p", PROMPT, "--prompt-cache", file)
    before = file.read_bytes()
    told = generated(run, tiny, "-p", PROMPT[:9], "--prompt-cache", file)
    assert (told["n_prompt"], file.read_bytes() == before) == (1, True)
    generated(run, tiny, "-p", "other", "--prompt-cache", file, "--prompt-cache-ro")
    assert file.read_bytes() == before


def test_the_text_may_be_kept_and_goes_on(run: Run, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.cache"
    cache = ("--prompt-cache", file, "--prompt-cache-all")
    first = generated(run, tiny, "-p", PROMPT, *cache)
    kept = LlamaState.read(file).tokens[0]
    whole = first["prompt_tokens"] + first["tokens"]
    assert kept == whole[:-1]  # the last one has not been run
    again = generated(run, tiny, *cache)
    assert again["prompt_tokens"] == kept
    assert (
        again["prompt"] + again["text"]
        == generated(run, tiny, "-p", PROMPT, "-n", 11)["prompt"]
        + generated(run, tiny, "-p", PROMPT, "-n", 11)["text"]
    )
    assert again["n_prompt"] == 1


def test_a_shifted_text_is_no_prefix(run: Run, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.cache"
    cache = ("--prompt-cache", file, "--prompt-cache-all")
    line = ("generate", "-m", tiny, *SETTINGS, "-p", "a long prompt", *cache, "--ignore-eos")
    for more, n_kept in ((("--keep", 4), 5), ((), 1)):
        told = run(*line, "-c", 24, "-n", 40, "--context-shift", *more)
        n_run = len(json.loads(told.out)["prompt_tokens"]) + 39
        assert (told.code, told.err) == (
            0,
            f"ggmlpy: warning: the context was shifted: the prompt cache keeps {n_kept} of"
            f" {n_run} tokens, the first ones\n",
        )
        assert len(LlamaState.read(file).tokens.get(0, [])) == n_kept
    with Llama(tiny, backend="reference") as llm:
        llm.save_state(file)
    error = run("generate", "-m", tiny, *SETTINGS, *cache).error
    assert error == "prompt.cache: the file has no tokens that a text could go on from: give -p"
    anew = generated(run, tiny, "-p", PROMPT, *cache)
    assert anew["n_prompt"] == len(anew["prompt_tokens"])
    assert run(*line, "-c", 64, "-n", 40, "--context-shift").err == ""


def test_files_that_are_no_states(run: Run, tiny: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other.gguf", Tiny(seed=5))
    file = tmp_path / "prompt.cache"
    generated(run, other, "-p", PROMPT, "--prompt-cache", file)
    wrong = run("generate", "-m", tiny, "-p", "a", "--prompt-cache", file).error
    assert wrong.startswith('the state was saved with "other.gguf", another model than tiny.gguf')
    file.write_bytes(b"no state")
    assert "prompt.cache" in run("generate", "-m", tiny, "-p", "a", "--prompt-cache", file).error
    folder = run("generate", "-m", tiny, "-p", "a", "--prompt-cache", tmp_path).error
    assert str(tmp_path.name) in folder
    missing = tmp_path / "none" / "prompt.cache"
    error = run("generate", "-m", tiny, "-p", "a", "--prompt-cache", missing).error
    assert error == f"{missing}: the file cannot be written: No such file or directory"
    for flag in ("--prompt-cache-all", "--prompt-cache-ro"):
        error = run("generate", flag).usage_error
        assert error == "--prompt-cache FILE names the file of the prompt cache"


def test_a_home_folder_may_be_a_tilde(
    run: Run, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    generated(run, tiny, "-p", PROMPT, "--prompt-cache", "~/prompt.cache")
    assert (tmp_path / "prompt.cache").exists()
    (tmp_path / "prompt.txt").write_text("a text")
    assert generated(run, tiny, "-f", "~/prompt.txt")["prompt"] == "a text"

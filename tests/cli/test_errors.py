"""Whatever is wrong with a file or a value: one line that says what, exit code 1, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.gguf_builder import build_gguf, gguf_bytes
from tests.models.tiny import Tiny, write_model
from tests.shared import shared_path

REFERENCE = ("--backend", "reference")
MODEL_COMMANDS = ("generate", "chat", "graph", "bench", "batched-bench")  # with -m
FILE_COMMANDS = ("inspect", "tokenize")


def arguments(command: str, file: Path) -> list[str]:
    """The command on `file`, with everything else in order."""
    if command in MODEL_COMMANDS:
        backend = [] if command == "graph" else REFERENCE
        return [command, "-m", str(file), *backend]
    return [command, str(file), *(["text"] if command == "tokenize" else [])]


def damaged(folder: Path, kind: str) -> Path:
    """A file that is no sound GGUF file."""
    path = folder / f"{kind}.gguf"
    sound = gguf_bytes({"general.architecture": "llama"}, {"w": ("f32", (8,), bytes(32))})
    if kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes({
            "empty": b"",
            "truncated": sound[:-8],
            "cut_header": sound[:20],
            "magic": b"GGML" + sound[4:],
            "version": gguf_bytes(version=7),
            "counts": gguf_bytes(n_kv=10**12),
        }[kind])  # fmt: skip
    return path


@pytest.mark.parametrize("command", [*MODEL_COMMANDS, *FILE_COMMANDS])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "missing.gguf: there is no such file in {folder}"),
        ("folder", "{folder}/folder.gguf is a folder; it must be a GGUF file"),
        ("empty", "empty.gguf: the file is empty; a GGUF file has at least 24 bytes"),
        ("truncated", 'truncated.gguf: tensor "w" (f32 [8]) needs the bytes 128 to 160,'),
        ("cut_header", "cut_header.gguf: 20 bytes long, a GGUF file has at least 24"),
        ("magic", "magic.gguf: not a GGUF file: begins with b'GGML', not b'GGUF'"),
        ("version", "version.gguf: GGUF version 7, must be 2 or 3"),
        ("counts", "counts.gguf: header counts 1000000000000 keys of at least 13 bytes each,"),
    ],
)
def test_files_that_are_no_gguf(
    run: Run, tmp_path: Path, command: str, kind: str, message: str
) -> None:
    outcome = run(*arguments(command, damaged(tmp_path, kind)))
    assert outcome.error.startswith(message.format(folder=tmp_path))
    assert outcome.out == ""


@pytest.mark.parametrize("command", [*MODEL_COMMANDS, *FILE_COMMANDS])
@pytest.mark.parametrize(("name", "shown"), [("a\0b", r"a\x00b"), ("\ud800.gguf", r"\ud800.gguf")])
def test_names_that_no_file_can_have(run: Run, command: str, name: str, shown: str) -> None:
    error = run(*arguments(command, Path(name))).usage_error
    assert f"'{shown}' cannot be the name of a file" in error


@pytest.mark.parametrize("command", MODEL_COMMANDS)
def test_architecture_that_is_not_known(run: Run, tmp_path: Path, command: str) -> None:
    from ggmlpy.models import ARCHITECTURES

    path = write_model(tmp_path / "m.gguf", Tiny(), general__architecture="zzz")
    outcome = run(*arguments(command, path))
    assert outcome.error == (
        'm.gguf: architecture "zzz" is not supported; docs/models.md and'
        f" ggmlpy.models.ARCHITECTURES list the {len(ARCHITECTURES)} that are"
    )


@pytest.mark.parametrize("command", MODEL_COMMANDS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"llama__block_count": None}, 'm.gguf: key "llama.block_count" is missing'),
        ({"llama__block_count": 3}, 'm.gguf: key "llama.block_count" is 3, must be at most 2, the'),
        ({"llama__block_count": "two"}, 'm.gguf: key "llama.block_count" has type str, must be'),
        ({"llama__feed_forward_length": 95}, 'm.gguf: "blk.0.ffn_gate.weight" is [64, 96], the'),
    ],
)
def test_models_that_do_not_fit_their_metadata(
    run: Run, tmp_path: Path, command: str, change: dict[str, object], message: str
) -> None:
    path = write_model(tmp_path / "m.gguf", Tiny(), **change)
    assert run(*arguments(command, path)).error.startswith(message)


@pytest.mark.parametrize("command", ["generate", "tokenize"])
def test_tokenizer_of_an_unknown_kind(run: Run, tmp_path: Path, command: str) -> None:
    path = write_model(tmp_path / "m.gguf", Tiny(), tokenizer__ggml__model="runes")
    message = run(*arguments(command, path)).error
    assert 'tokenizer.ggml.model is "runes": it must be llama' in message
    assert "llama, gpt2" in message


def test_tokenizer_of_a_kind_without_text(run: Run) -> None:
    path = shared_path("reference/archs/qwen2-dense.gguf")
    assert 'tokenizer.ggml.model is "test"' in run("tokenize", path, "a").error


def test_damaged_vocabulary(run: Run, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", Tiny(), tokenizer__ggml__scores=[1.0])
    for command in ("generate", "tokenize"):
        message = run(*arguments(command, path)).error
        assert "tokenizer.ggml.scores has 1 elements for 288 tokens" in message


def test_prompt_longer_than_the_context(run: Run, tiny: Path) -> None:
    outcome = run(*arguments("generate", tiny), "-c", 8, "-p", "b" * 20, "--no-echo")
    must = "; -c 192 would do"  # for 128 tokens more, the default of -n
    said = "the prompt is too long: 21 tokens, a sequence may have n_ctx_seq = 8"
    assert outcome.error == said + must
    assert outcome.out == ""
    piped = run(*arguments("chat", tiny), "-c", 8, stdin="hello\n")
    assert "ggmlpy: error: message 1: the prompt is" in piped.err
    assert "tokens, a sequence may have n_ctx_seq = 8; -c " in piped.err.splitlines()[-1]
    assert piped.code == 1


def test_backend_that_is_not_installed(run: Run, tiny: Path) -> None:
    for command in ("generate", "chat"):
        outcome = run(command, "-m", tiny, "--backend", "abacus")
        assert outcome.error.startswith("no backend 'abacus'; there are cpu, reference, null")


@pytest.mark.parametrize("flag", ["-ctk", "-ctv"])
@pytest.mark.parametrize("command", MODEL_COMMANDS)
def test_kv_types(run: Run, tiny: Path, command: str, flag: str) -> None:
    name = {"-ctk": "type_k", "-ctv": "type_v"}[flag]
    for type, message in {
        "f17": f"{name} is 'f17': must be one of f32, f16, bf16, q8_0",
        "i32": f"{name} is i32: K and V may be f32, f16, bf16, q8_0",
        "q8_0": f"{name} is q8_0, in blocks of 32: the head size 16 is not a multiple",
    }.items():
        assert run(*arguments(command, tiny), flag, type).error.startswith(message)


@pytest.mark.parametrize("command", MODEL_COMMANDS)
def test_a_rotation_of_what_is_not_quantised(run: Run, tiny: Path, command: str) -> None:
    outcome = run(*arguments(command, tiny), "-kvr", "on")
    assert outcome.error.startswith("kv_rotation is True, but K is f16 and V is f16: only what is")


def test_context_beyond_all_memory(run: Run, tiny: Path) -> None:
    outcome = run(*arguments("generate", tiny), "-c", 10**14, "-p", "a")
    wanted = "a KV cache for n_ctx = 100000000000000 tokens: "
    assert outcome.error.startswith(wanted)  # without a warning that it is beyond the training
    assert "bytes of memory cannot be had" in outcome.error


def test_sampling_values_that_only_the_engine_can_judge(run: Run, tiny: Path) -> None:
    for flag, value, name in (
        ("--repeat-penalty", "0", "repeat_penalty is 0.0: must be a number greater than 0"),
        ("--frequency-penalty", "inf", "frequency_penalty is inf: must be a finite number"),
        ("--presence-penalty", "nan", "presence_penalty is nan: must be a finite number"),
        ("--stop", "", "stop[0] is '': must be a string that is not empty"),
    ):
        assert run(*arguments("generate", tiny), flag, value, "--no-echo").error == name


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--temp", "-0.1"), "'--temp' / '--temperature': -0.1 is not at least 0"),
        (("--temp", "nan"), "'--temperature': nan is not at least 0"),
        (("--temp", "warm"), "'--temp' / '--temperature': 'warm' is not a number"),
        (("-n", "-3"), "'--predict' / '--n-predict': -3 is not at least 0, nor -1 for no limit"),
        (("--top-k", "-1"), "'--top-k': -1 is not at least 0"),
        (("--top-p", "1.5"), "'--top-p': 1.5 is not in 0 … 1"),
        (("--min-p", "-1"), "'--min-p': -1.0 is not in 0 … 1"),
        (("--typical", "2"), "'--typical-p': 2.0 is not in 0 … 1"),
        (("--samplers", "top_k;top_x"), "samplers names 'top_x': did you mean "),
        (("--sampler-seq", "kz"), "the sequence of samplers has 'z': known are e (penalties)"),
        (("--samplers", "top_k", "--sampling-seq", "k"), "--samplers and --sampler-seq exclude"),
        (("--mirostat", "3"), "3 is not in 0 … 2"),
        (("--dry-base", "0.5"), "0.5 is not at least 1"),
        (("--seed", "-2"), "-2 is not in -1 … "),
        (("-c", "-1"), "-1 is not at least 0"),
        (("-ub", "0"), "0 is not at least 1"),
        (("-t", "0"), "'-t' / '--threads': 0 is not in 1 … 512"),
        (("-t", "1000"), "'-t' / '--threads': 1000 is not in 1 … 512"),
        (("-t", "many"), "'-t' / '--threads': 'many' is not an integer"),
        (("--tempo", "1"), "No such option '--tempo'"),
        (("-p", "a", "-f", "b"), "-p and -f cannot be used together"),
        (("surplus",), "unexpected extra argument (surplus)"),
        (("-np", "4"), "No such option '-np': one text at a time; `Llama.generate` runs many"),
        (("-mg", "0"), "No such option '-mg': --backend cuda:1 names a GPU"),
        (("-nn", "4"), "No such option '-nn'"),
        (("-ins",), "No such option '-ins'"),
        (("-qx",), "No such option '-qx'"),
        (("-n4", "--zzz"), "No such option '--zzz'"),
        (("-mmodel", "-mm.gguf", "--zzz"), "No such option '--zzz'"),
        (("-fa", "perhaps"), "'-fa' / '--flash-attn': 'perhaps' is not on, off or auto"),
        (("-ngl", "-2"), "-2 is not at least -1"),
    ],
)
def test_wrong_options(run: Run, tiny: Path, args: tuple[str, ...], message: str) -> None:
    assert message in run(*arguments("generate", tiny), *args).usage_error


@pytest.mark.parametrize("command", ["generate", "chat", "bench"])
def test_a_model_as_an_argument(run: Run, tiny: Path, command: str) -> None:
    told = f"Got unexpected extra argument ({tiny})"
    assert run(command, tiny).usage_error == f"{told}; a model is given by -m FILE"
    assert run(command, "-m", tiny, tiny).usage_error == told


def test_wrong_commands(run: Run) -> None:
    assert "No such command 'generat'" in run("generat").usage_error
    assert "There is no text" in run("tokenize").usage_error


def test_prompt_files(run: Run, tiny: Path, tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"abc\xff")
    for file, message in (
        (tmp_path / "none.txt", f"none.txt: there is no such file in {tmp_path}"),
        (tmp_path, f"{tmp_path}: the file cannot be read: Is a directory"),
        (binary, "binary: not UTF-8 text at byte 3"),
    ):
        assert run(*arguments("generate", tiny), "-f", file).error == message


def test_strange_names_stay_on_one_line(run: Run, tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "m.gguf", {"general.architecture": b"a\x1b[31m\tb\xff"})
    error = run(*arguments("generate", path)).error
    assert error.startswith(r'm.gguf: architecture "a\u001b[31m\tb\udcff" is not supported')


def test_strange_file_names_stay_on_one_line(run: Run, tmp_path: Path) -> None:
    path, shown = tmp_path / "a\n\x1b[31m.gguf", r"a\n\x1b[31m.gguf"
    for command in (*MODEL_COMMANDS, *FILE_COMMANDS):
        missing = run(*arguments(command, path)).error
        assert missing == f"{shown}: there is no such file in {tmp_path}"
    write_model(path, Tiny(), llama__block_count=3, tokenizer__ggml__scores=[1.0])
    assert run(*arguments("generate", path)).error.startswith(f'{shown}: key "llama.block_count"')
    assert run(*arguments("tokenize", path)).error.startswith(f"{shown}: tokenizer.ggml.scores has")
    assert run("inspect", path).out.startswith(f"{shown}: GGUF version 3")
    write_model(path, Tiny(), tokenizer__ggml__model="a\nb\x1b")
    message = run(*arguments("tokenize", path)).error
    assert message.startswith(f'{shown}: tokenizer.ggml.model is "a\\nb\\u001b": it must be')


def test_tensors_that_a_model_does_not_use_are_named(run: Run, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", Tiny(biases=True))
    path.write_bytes(path.read_bytes().replace(b"blk.0.ffn_up.bias", b"blk.0.ffn_up.bios"))
    outcome = run(*arguments("generate", path), "-n", 2, "-q")
    assert outcome.code == 0
    wanted = 'ggmlpy: warning: m.gguf: no part of the model uses "blk.0.ffn_up.bios": results'
    assert outcome.err.startswith(wanted)
    assert outcome.err.count("\n") == 1


def test_the_packaged_model_may_be_left_out(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ggmlpy import packaged

    monkeypatch.setattr(packaged, "files", lambda package: tmp_path)
    for command in MODEL_COMMANDS:
        message = run(command).error
        assert message == "stories.gguf: this installation has no packaged model: name a file"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("quantize", "", "Q4_0"), "the name of the model file is empty"),
        (("quantize", "{folder}", "Q4_0"), "{folder} is a folder; it must be a GGUF file"),
        (("quantize", "{model}", "{folder}", "Q4_0"), "{folder}: {unwritable}: Is a directory"),
        (("quantize", "{model}", "{none}", "Q4_0"), "{none}: {unwritable}: No such file or"),
        (("quantize", "--imatrix", "{folder}", "{model}", "Q4_0"), "{folder} is a folder; it must"),
        (("quantize", "~/none.gguf", "Q4_0"), "none.gguf: there is no such file in {folder}"),
        (("imatrix", "-p", "a", "-o", "{folder}"), "{folder}: {unwritable}: Is a directory"),
        (("imatrix", "-p", "a", "-o", "{none}"), "{none}: {unwritable}: No such file or directory"),
        (("imatrix", "--in-file", "{folder}"), "{folder} is a folder; it must be an importance"),
        (("imatrix", "-m", "{folder}", "-p", "a"), "{folder} is a folder; it must be a"),
        (("perplexity", "-m", "{folder}", "-p", "a"), "{folder} is a folder; it must be"),
        (("perplexity", "-p", "a", "--save-all-logits", "{none}"), "{none}: {unwritable}: No such"),
        (("embedding", "-m", "{folder}", "-p", "a"), "{folder} is a folder; it must be a"),
        (("embedding", "-m", "me/repo:Q8_0", "-p", "a"), "repo:Q8_0: there is no such file in me;"),
        (("embedding", "-m", "https://x.y/z", "-p", "a"), "https://x.y/z: this is a URL, not a"),
        (("generate", "--prompt-cache", "{none}"), "{none}: {unwritable}: No such file or"),
    ],
)
def test_files_of_the_wrong_kind(
    run: Run,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    message: str,
) -> None:
    """Before anything runs, in the words that all commands have."""
    monkeypatch.setenv("HOME", str(tmp_path))
    names = {"folder": str(tmp_path), "name": tmp_path.name, "model": str(tiny)}
    names |= {"none": str(tmp_path / "none" / "file"), "unwritable": "the file cannot be written"}
    error = run(*(arg.format(**names) for arg in args)).error
    assert error.startswith(message.format(**names))


def test_the_command_whose_help_is_named(run: Run) -> None:
    for args in (("chat", "-c"), ("chat", "-c", "x"), ("chat", "--zzz"), ("chat", "surplus")):
        assert run(*args).err.endswith("(see `ggmlpy chat --help`)\n")

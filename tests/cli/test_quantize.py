"""`ggmlpy quantize` and `ggmlpy imatrix`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggmlpy import packaged_model
from ggmlpy.gguf import GGUFFile
from ggmlpy.quantize import Imatrix
from tests.cli.conftest import Run
from tests.gguf_builder import build_gguf
from tests.models.tiny import Tiny, write_model
from tests.quantize.peer import TEXT, uniform


@pytest.fixture
def small(tmp_path: Path) -> Path:
    names = ["token_embd", "blk.0.attn_q", "blk.0.ffn_up"]
    tensors = {f"{name}.weight": ("f32", (256, 2), uniform(1, (512,)).tobytes()) for name in names}
    tensors["blk.0.ffn_down.weight"] = ("f32", (96, 2), uniform(2, (192,)).tobytes())
    keys = {"general.architecture": "llama", "llama.block_count": 1}
    return build_gguf(tmp_path / "small.gguf", keys, tensors)


def types(path: Path) -> dict[str, str]:
    with GGUFFile.open(path) as file:
        return {name.removesuffix(".weight"): info.type.name for name, info in file.tensors.items()}


def test_lines(run: Run, small: Path, tmp_path: Path) -> None:
    outcome = run("quantize", small, "q5_k_m", "2")
    assert outcome.code == 0, outcome
    out = tmp_path / "ggml-model-Q5_K_M.gguf"
    first, *_, before, after = outcome.out.splitlines()
    shape = "[  256,     2],     f32 ->    q6_K"
    assert first.startswith(f"[   1/   4] token_embd.weight {' ' * 18} {shape}"), first
    assert before == "model size: 0.01 MiB (32.00 bits per weight)"
    assert after.startswith("quantised size: 0.00 MiB (")
    # Kernels that are not in the cache yet are announced before these lines.
    assert outcome.err.splitlines()[-2:] == [
        "1 of 4 tensors have another type, as their rows need it",
        f"written: {out}",
    ]
    assert types(out) == {
        "token_embd": "q6_K",
        "blk.0.attn_q": "q5_K",
        "blk.0.ffn_down": "q8_0",  # in place of q6_K
        "blk.0.ffn_up": "q5_K",
    }


def test_json_and_dry_runs(run: Run, small: Path, tmp_path: Path) -> None:
    dry = run("quantize", "--dry-run", "--json", small, "Q4_0")
    records = [json.loads(line) for line in dry.out.splitlines()]
    assert [r.get("to") for r in records] == ["q6_K", "q4_0", "q4_0", "q4_0", None]
    assert records[0] == {
        "tensor": "token_embd.weight",
        "ne": [256, 2],
        "from": "f32",
        "to": "q6_K",
        "n_bytes_from": 2048,
        "n_bytes": 420,
    }
    assert not list(tmp_path.glob("ggml-*"))
    wet = run("quantize", "--json", small, tmp_path / "out.gguf", "Q4_0")
    last = json.loads(wet.out.splitlines()[-1])
    assert wet.out.splitlines()[:-1] == dry.out.splitlines()[:-1]
    assert last == {**records[-1], "files": [str(tmp_path / "out.gguf")]}
    needs = run("quantize", "--dry-run", small, "Q2_K_S")
    assert needs.err.endswith("writing this needs an importance matrix (--imatrix)\n")
    needs = run("quantize", "--dry-run", small, "IQ2_XS")
    assert needs.err.endswith("writing this needs an importance matrix (--imatrix)\n")


def test_choices(run: Run, small: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "out.gguf", tmp_path / "types.txt"
    file.write_text("ffn_up=q5_0\nATTN=iq4_nl")
    more = [
        "--tensor-type-file",
        file,
        "--token-embedding-type",
        "f16",
        "--tensor-type",
        "down=f32",
    ]
    assert run("quantize", *more, "--override-kv", "a.b=int:7", small, out, "Q8_0").code == 0
    assert list(types(out).values()) == ["f16", "iq4_nl", "f32", "q5_0"]
    with GGUFFile.open(out) as written:
        assert written.metadata["a.b"] == 7
    assert run("quantize", small, out, "COPY").code == 0
    assert set(types(out).values()) == {"f32"}


def test_wrong_arguments(run: Run, small: Path, tmp_path: Path) -> None:
    assert run("quantize", small).usage_error == "MODEL and TYPE must be given"
    assert run("quantize", small, "Q9").error.startswith(
        "unknown file type 'Q9'; must be one of F32,"
    )
    assert run("quantize", small, "out", "Q9").error.startswith("unknown file type 'Q9'")
    assert "is too much" in run("quantize", small, "out", "Q4_0", "2", "3").usage_error
    assert run("quantize", "--tensor-type", "a", small, "Q4_0").error == (
        "tensor-type is 'a': it must be PATTERN=TYPE"
    )
    assert run("quantize", "--tensor-type", "a=q9", small, "Q4_0").error.startswith(
        "unknown tensor type 'q9'"
    )
    assert run("quantize", "--tensor-type", "(=f16", small, "Q4_0").error.startswith(
        "tensor-type is '(=f16'"
    )
    both = ["--include-weights", "a", "--exclude-weights", "b"]
    assert "cannot be used together" in run("quantize", *both, small, "Q4_0").usage_error
    assert "is q8_0 already" in run("quantize", packaged_model(), tmp_path / "o", "Q4_0").error
    assert run("quantize", tmp_path / "none.gguf", "Q4_0").error == (
        f"none.gguf: there is no such file in {tmp_path}"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["small.gguf"]


def test_imatrix(run: Run, tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "m.gguf"
    text.write_text(TEXT)
    common = ["imatrix", "-f", text, "-o", out, "-c", 32, "-t", 1]
    outcome = run(*common, "--chunks", 3, "--save-frequency", 2)
    assert outcome.code == 0, outcome
    assert outcome.out.startswith("[1]") and "\nFinal estimate: PPL = " in outcome.out
    matrix = Imatrix.load(out)
    assert (matrix.n_chunks, matrix.chunk_size, matrix.datasets) == (3, 32, (str(text),))
    assert "output.weight" not in matrix.entries
    assert Imatrix.load(tmp_path / "m.gguf.at_2").n_chunks == 2
    added = run(*common, "--chunk", 1, "--chunks", 2, "--no-ppl", "--in-file", out)
    assert (added.code, added.out) == (0, "")
    assert Imatrix.load(out).n_chunks == 5
    sums = run(
        "imatrix", "--in-file", out, "-c", 32, "--output-format", "dat", "-o", tmp_path / "d"
    )
    assert sums.code == 0 and Imatrix.load(tmp_path / "d").is_legacy
    small = tmp_path / "small.gguf"
    options = ["--imatrix", tmp_path / "d", "--allow-requantize"]
    assert run("quantize", *options, packaged_model(), small, "Q2_K_S").code == 0
    with GGUFFile.open(small) as file:
        assert file.metadata["quantize.imatrix.chunks_count"] == 5
    assert run("imatrix", "-o", out).usage_error.startswith("There is no text")
    assert "must have at least" in run("imatrix", "-p", "Hello", "-o", out).error
    assert "two at least must be left" in run(*common, "--chunk", 9).usage_error


def test_the_model_may_be_an_option(run: Run, tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", Tiny())
    plain = run("quantize", "--dry-run", model, "Q8_0")
    assert plain.code == 0
    assert run("quantize", "--dry-run", "-m", model, "Q8_0") == plain
    outs = [tmp_path / "one.gguf", tmp_path / "two.gguf"]
    assert run("quantize", model, outs[0], "Q8_0", "1").code == 0
    assert run("quantize", "-m", model, outs[1], "Q8_0", "1").code == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert run("quantize", "-m", model).usage_error == "MODEL and TYPE must be given"
    assert run("quantize").usage_error == "MODEL and TYPE must be given"

"""ggmlpy as a measured engine: filled sequences go on as if they had run their prompts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.ours import Ggmlpy
from benchmarks.worker import random_tokens
from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.models.tiny import Tiny, write_model

KV_BYTES = 2 * 2 * 2 * 16 * 2  # of a token in Tiny(): layers, K and V, heads, head size, f16
WINDOWED = Tiny(
    architecture="gemma3", qk_norm=True, post_norms=True, window=8, windowed=(0,), tied=True
)


@pytest.fixture(autouse=True)
def on_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGMLPY_BENCHMARK_BACKEND", "reference")


def loaded(tmp_path: Path, tiny: Tiny) -> tuple[Ggmlpy, str]:
    path = str(write_model(tmp_path / "tiny.gguf", tiny))
    engine = Ggmlpy()
    assert engine.load(path, 1) > 0
    return engine, path


def alone(path: str, prompt: list[int], more: list[int]) -> np.ndarray:
    """Logits of the last token of a sequence that has run all of it."""
    context = Context(load_model(GGUFFile.open(path)), backends_for("reference"), n_ctx=64)
    if prompt:
        context.decode(prompt)
    for token in more:
        logits = context.decode([token])
    last: np.ndarray = logits[-1].copy()
    return last


@pytest.mark.parametrize("tiny", [Tiny(), WINDOWED], ids=["full", "windowed"])
@pytest.mark.parametrize("layout", ["split", "paged", "unified", "interleaved"])
@pytest.mark.parametrize("depth", [0, 3, 19])
def test_decoding_goes_on_at_the_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Tiny, layout: str, depth: int
) -> None:
    engine, path = loaded(tmp_path, tiny)
    engine.open(3 * 32, 3, "unified" if layout == "interleaved" else layout, "f16", "f16")
    engine.prepare([19, 0, 3])
    context = engine._opened()
    seen = []
    decode_batch = context.decode_batch

    def noting(batch: object) -> object:
        seen.append(decode_batch(batch).copy())  # type: ignore[arg-type]
        return seen[-1]

    monkeypatch.setattr(context, "decode_batch", noting)
    seconds = engine.decode(3, 2, depth, 1, layout == "interleaved")
    assert len(seconds) == 2
    assert min(seconds) > 0
    assert len(seen) == 3
    prompt = random_tokens(tiny.n_vocab, 1, 19)[0][:depth]
    steps = random_tokens(tiny.n_vocab, 3, 3)
    for seq in range(3):
        expected = alone(path, prompt, [row[seq] for row in steps])
        np.testing.assert_allclose(seen[-1][seq], expected, rtol=1e-4, atol=1e-4)
    assert [context.n_past(seq) for seq in range(3)] == [depth + 3] * 3


def test_interleaved_cells_are_those_of_the_sequences_in_turn(tmp_path: Path) -> None:
    engine, _ = loaded(tmp_path, Tiny())
    engine.open(3 * 8, 3, "unified", "f16", "f16")
    engine.prepare([5])
    engine._fill(engine._opened().memory, 3, 5, True)
    (cache,) = engine._opened().memory.caches
    assert [cache.cells.of(seq).tolist() for seq in range(3)] == [
        [seq, seq + 3, seq + 6, seq + 9, seq + 12] for seq in range(3)
    ]
    engine._fill(engine._opened().memory, 3, 5, False)
    assert [cache.cells.of(seq).tolist() for seq in range(3)] == [
        list(range(5 * seq, 5 * seq + 5)) for seq in range(3)
    ]


def test_logits_are_those_of_the_last_prompt(tmp_path: Path) -> None:
    engine, path = loaded(tmp_path, Tiny())
    engine.open(16, 1, "split", "f16", "f16")
    engine.prompt(9)
    first = engine.logits()
    engine.prompt(4)
    tokens = random_tokens(Tiny().n_vocab, 1, 4)[0]
    logits = np.frombuffer(bytes.fromhex(engine.logits()), "<f4")
    np.testing.assert_allclose(logits, alone(path, tokens[:3], tokens[3:]), rtol=1e-4, atol=1e-4)
    assert first != engine.logits()


def test_bytes_of_a_step_and_of_the_cache(tmp_path: Path) -> None:
    engine, _ = loaded(tmp_path, Tiny())
    engine.open(4 * 10, 4, "split", "f16", "f16")
    nothing = engine.step_bytes(1, 0)
    assert engine.step_bytes(4, 7) == nothing + 4 * 7 * KV_BYTES
    assert nothing > 10_000  # the weights
    sizes = engine.resident_bytes()
    assert sizes["cache"] == 4 * 256 * (KV_BYTES + 4)  # streams are padded, an i32 lists each cell
    assert sizes["peak"] > sizes["cache"]


def test_a_missing_file_is_an_error_of_its_own(tmp_path: Path) -> None:
    from ggmlpy.errors import MissingFile

    with pytest.raises(MissingFile):
        Ggmlpy().load(str(tmp_path / "none.gguf"), 1)

"""Rows to blocks: the bytes are llama.cpp's, which are recorded."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ggmlpy.errors import ShapeError, Unsupported
from ggmlpy.graph.quants import to_float
from ggmlpy.graph.types import TYPES
from ggmlpy.quantize.rows import can_quantize, quantize_rows
from tests.quantize import peer
from tests.quantize.peer import KINDS, importance, importances_of, recorded, rows


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.mark.parametrize("name", peer.TYPES)
def test_bytes_are_llama_cpps(pool: ThreadPoolExecutor, name: str) -> None:
    expected = recorded()["rows"]
    for kind in KINDS:
        for weights in importances_of(name):
            blocks = quantize_rows(rows(kind), TYPES[name], importance(weights), pool)
            assert peer.digest(blocks) == expected[f"{name} {kind} {weights}"], (kind, weights)


@pytest.mark.parametrize("name", ["q4_0", "q3_K", "q4_K", "iq4_xs", "iq2_xs", "iq1_m"])
def test_rows_are_alone(pool: ThreadPoolExecutor, name: str) -> None:
    """Whatever rows are beside one, and however many threads and calls there are."""
    x = np.tile(rows("bell"), (40, 1))
    whole = quantize_rows(x, TYPES[name], importance("positive"), pool)
    for i in (0, 5, 479):
        alone = quantize_rows(x[i : i + 1], TYPES[name], importance("positive"), pool)
        np.testing.assert_array_equal(alone[0], whole[i])


@pytest.mark.parametrize("name", ["q4_K", "q2_K", "q4_1", "iq4_nl", "iq3_s", "iq2_s"])
def test_importances_move_errors_elsewhere(pool: ThreadPoolExecutor, name: str) -> None:
    """The weighted error is less with the weights than without."""
    x, w = rows("bell"), importance("positive")
    assert w is not None

    def error(weights: peer.Floats | None) -> float:
        back = to_float(quantize_rows(x, TYPES[name], weights, pool), TYPES[name])
        return float((w * np.square((back - x).astype(np.float64))).sum())

    assert error(w) < 0.97 * error(None)


@pytest.mark.parametrize(
    ("name", "first", "scales"),
    [  # what ggml_quantize_chunk writes, without importances and with them
        *((name, zero, [(0, 0x80), (0, 0)]) for name in ("q4_0", "q5_0") for zero in (0.0, -0.0)),
        *((name, 0.0, [(0, 0, 0, 0)]) for name in ("q4_1", "q5_1")),
        *((name, -0.0, [(0, 0, 0, 0x80)]) for name in ("q4_1", "q5_1")),
    ],
)
def test_scales_of_zeros_have_ggmls_signs(
    pool: ThreadPoolExecutor, name: str, first: float, scales: list[tuple[int, ...]]
) -> None:
    """Of all zeros, of both signs, and for a minimum of positive numbers and zeros."""
    x = np.zeros((2, 64), np.float32)
    x[:, 7::2] = -0.0
    x[:, ::32] = first
    for expected, weights in zip(scales, (None, np.ones(64, np.float32)), strict=False):
        blocks = quantize_rows(x, TYPES[name], weights, pool).reshape(4, -1)
        assert [tuple(block[: len(expected)]) for block in blocks.tolist()] == [expected] * 4
    if name.endswith("_1"):
        x[0, 3], x[1, 40] = 1.5, -1e-9
        minima = quantize_rows(x, TYPES[name], None, pool).reshape(4, -1)[:, 2:4].tolist()
        own = list(scales[0][2:])
        assert minima == [own, own, own, [0, 0x80]]  # the last one is too small for f16


def test_zeros_do_not_move_what_follows(pool: ThreadPoolExecutor) -> None:
    """llama.cpp writes iq3_s behind a block of zeros where the zeros' codes belong."""
    x = rows("bell")[:1, :256].copy()
    x[0, 64:96] = 0
    for weights in (None, importance("positive")):
        w = None if weights is None else weights[:256]
        back = to_float(quantize_rows(x, TYPES["iq3_s"], w, pool), TYPES["iq3_s"])
        assert np.square(back - x).sum() < 0.05 * np.square(x).sum()


def test_what_cannot_be_quantised(pool: ThreadPoolExecutor) -> None:
    assert not can_quantize(TYPES["nvfp4"])
    with pytest.raises(Unsupported, match="nvfp4 cannot be written: it has no quantiser here"):
        quantize_rows(rows("bell"), TYPES["nvfp4"], None, pool)
    with pytest.raises(Unsupported, match="iq2_xxs cannot be written without the importances"):
        quantize_rows(rows("bell"), TYPES["iq2_xxs"], None, pool)
    with pytest.raises(ShapeError, match="blocks of 256"):
        quantize_rows(rows("bell")[:, :96], TYPES["q4_K"], None, pool)
    with pytest.raises(ShapeError, match="importances"):
        quantize_rows(rows("bell"), TYPES["q4_K"], np.ones(7, np.float32), pool)


@pytest.mark.parametrize("isa", ["generic", "avx2"])
def test_bytes_are_the_same_on_other_instruction_sets(
    pool: ThreadPoolExecutor, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ggmlpy.backends.cpu.isa import select
    from ggmlpy.errors import BackendError
    from ggmlpy.quantize import rows as module

    try:
        select(isa)
    except BackendError:
        pytest.skip(f"this CPU has no {isa}")
    compiled = module._function
    monkeypatch.setattr(module, "_function", lambda name: compiled(name, isa))
    for name in ("q4_K", "q3_K", "iq3_xxs", "iq1_m"):
        blocks = quantize_rows(rows("bell"), TYPES[name], importance("positive"), pool)
        assert peer.digest(blocks) == recorded()["rows"][f"{name} bell positive"]

"""A sequence has bitwise the logits that it has alone, wherever its cells lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.isa import available
from ggmlpy.gguf import GGUFFile
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.layouts import LAYOUTS
from ggmlpy.memory.state import put_state, take_state
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from tests.engine.test_streams import ARCHITECTURES, make
from tests.models.tiny import Tiny, write_model

N_SEQ = 4
RNG = np.random.default_rng(11)
TEXTS = [RNG.integers(3, 288, int(n)).tolist() for n in RNG.integers(25, 45, 2 * N_SEQ)]

Texts = dict[int, list[int]]
Logits = dict[int, NDArray[np.float32]]


def run_all(run: Context, texts: Texts, n: int) -> Logits:
    """What the memory lacks of some texts, `n` tokens of each at a time; the logits of that."""
    parts: dict[int, list[NDArray[np.float32]]] = {seq: [] for seq in texts}
    while due := [seq for seq, text in texts.items() if run.n_past(seq) < len(text)]:
        batch, lengths = Batch(), []
        for seq in due:
            start = run.n_past(seq)
            tokens = texts[seq][start : start + n]
            batch.add_sequence(seq, tokens, start, all_outputs=True)
            lengths.append(len(tokens))
        logits = np.split(run.decode_batch(batch), np.cumsum(lengths)[:-1])
        for seq, rows in zip(due, logits, strict=True):
            parts[seq].append(rows.copy())
    return {seq: np.concatenate(rows) for seq, rows in parts.items()}


def beginnings(n: int, *seqs: int) -> Texts:
    return {seq: TEXTS[seq][:n] for seq in seqs or range(N_SEQ)}


def fresh(run: Context) -> tuple[Texts, Logits]:
    texts = beginnings(99)
    return texts, run_all(run, texts, 7)


def copied(run: Context) -> tuple[Texts, Logits]:
    run_all(run, beginnings(15, 0, 1), 7)
    run.memory.seq_cp(0, 2)
    texts = {seq: TEXTS[0][:15] + TEXTS[seq] for seq in (0, 2)}
    return texts, run_all(run, texts, 3)


def reused(run: Context) -> tuple[Texts, Logits]:
    """Cells of texts that end or are cut: one that goes on gets some that lie before its own."""
    run_all(run, beginnings(20), 3)
    run.memory.seq_rm(1)
    kept = 11 if run.memory.recurrent is None else 0
    run.memory.seq_rm(2, kept)
    longer = {3: TEXTS[3]}
    got = run_all(run, longer, 3)
    texts = {1: TEXTS[5], 2: TEXTS[2][:kept] + TEXTS[6]}
    return longer | texts, got | run_all(run, texts, 7)


def resumed(run: Context) -> tuple[Texts, Logits]:
    run_all(run, beginnings(15), 5)
    state = take_state(run.memory, 2)
    run.memory.seq_rm(2)
    run_all(run, beginnings(20, 0, 1, 3), 5)
    put_state(run.memory, 2, state)
    texts = beginnings(99)
    return texts, run_all(run, texts, 5)


Scene = Callable[[Context], tuple[Texts, Logits]]


@pytest.mark.parametrize("scene", [fresh, copied, reused, resumed])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "separate ops"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "lfm2"])
def test_alone_and_among_others(
    tmp_path: Path, architecture: str, flash_attn: bool, layout: str, scene: Scene
) -> None:
    model = ARCHITECTURES[architecture]
    options = {"model": model, "flash_attn": flash_attn, "n_ctx_seq": 80, "n_ubatch": 64}
    run = make(tmp_path, n_seq_max=N_SEQ, layout=layout, **options)  # type: ignore[arg-type]
    texts, got = scene(run)
    for seq, text in texts.items():
        alone = make(tmp_path, n_seq_max=1, **options)  # type: ignore[arg-type]
        want = alone.decode(text, all_logits=True)[-len(got[seq]) :]
        np.testing.assert_array_equal(got[seq], want, str(seq))


def cells_of_window(run: Context) -> int:
    (cache,) = (cache for cache in run.memory.caches if cache.cells.window is not None)
    return cache.cells.n_ctx


@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "separate ops"])
@pytest.mark.parametrize("n_tokens", [250, 300])
def test_a_text_longer_than_the_cells_of_its_window(
    tmp_path: Path, flash_attn: bool, n_tokens: int
) -> None:
    """They are used round and round, and summed in the order of positions all the same."""
    text = RNG.integers(3, 288, n_tokens).tolist()
    model = ARCHITECTURES["gemma3"]

    def context(n_ubatch: int, n_seq_max: int = 1) -> Context:
        return make(
            tmp_path, n_seq_max=n_seq_max, n_ctx_seq=600, n_ubatch=n_ubatch,
            flash_attn=flash_attn, model=model,
        )  # fmt: skip

    want = context(64).decode(text, all_logits=True).copy()
    cells = 256
    for run, n in ((context(64), 1), (context(200), 200), (context(64, 2), 31)):
        assert cells_of_window(run) == cells
        others = {1: TEXTS[1]} if run.sizes.n_seq_max > 1 else {}
        np.testing.assert_array_equal(run_all(run, {0: text, **others}, n)[0], want, str(n))
    more = context(512)
    assert cells_of_window(more) > cells
    np.testing.assert_array_equal(more.decode(text, all_logits=True), want)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_of_bf16(tmp_path: Path, layout: str) -> None:
    """Whatever multiplies them here: AMX sums them in an order of its own."""
    model = Tiny(n_head=2, n_head_kv=1, n_rot=32, n_ff=128, weight_type="bf16")
    run = make(tmp_path, n_seq_max=N_SEQ, layout=layout, n_ctx_seq=80, model=model)
    texts, got = fresh(run)
    for seq, text in texts.items():
        alone = make(tmp_path, n_seq_max=1, n_ctx_seq=80, model=model)
        want = np.concatenate([alone.decode([token]).copy() for token in text])
        np.testing.assert_array_equal(got[seq], want)


@pytest.mark.parametrize("weight_type", ["f16", "q8_0"])
def test_every_instruction_set_with_fma(tmp_path: Path, weight_type: str) -> None:
    """`generic` of x86-64, which has none, is the only one with bits of its own."""
    levels = [isa for isa in available() if "fma" in isa.has]
    if len(levels) == 1:
        pytest.skip("this machine has one instruction set with fma")
    path = tmp_path / "tiny.gguf"
    write_model(path, Tiny(n_head=2, n_head_kv=1, n_rot=32, n_ff=128, weight_type=weight_type))
    model = load_model(GGUFFile.open(path))
    logits = []
    for isa in levels:
        run = Context(model, [CpuBackend(2, isa)], n_ctx=80)
        logits.append(run.decode(TEXTS[0], all_logits=True).copy())
    for isa, got in zip(levels[1:], logits[1:], strict=True):
        np.testing.assert_array_equal(got, logits[0], isa.name)

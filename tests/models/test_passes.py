"""Whole models with and without passes: the same bits, fewer records, smaller arenas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.backends.base import Places
from ggmlpy.backends.cpu.backend import CpuBackend, CpuPlan
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.backends.step import Step
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.buffer import HOST
from ggmlpy.memory.batch import Batch
from ggmlpy.models import Model, load_model
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.describe import summary
from ggmlpy.runtime.preview import build_graph
from ggmlpy.sched.allocator import allocate
from ggmlpy.sched.executable import scheduled
from ggmlpy.sched.passes import PASSES
from tests.models.checks import TOKENS
from tests.models.tiny import Tiny, write_model
from tests.shared import shared_path

MODELS = {
    "llama": Tiny(n_layer=3),
    "llama q8_0": Tiny(weight_type="q8_0", biases=True, scales=True),
    "odd sizes": Tiny(n_embd=60, n_head=3, n_head_kv=1, n_rot=20, n_ff=44, freq_factors=True),
    "experts": Tiny(n_expert=4, n_expert_used=2),
    "qwen2": Tiny(architecture="qwen2", neox=True, biases=True),
    "qwen3": Tiny(architecture="qwen3", neox=True, qk_norm=True),
    "gemma3": Tiny(
        architecture="gemma3", n_layer=3, neox=True, qk_norm=True, post_norms=True, gelu=True,
        embedding_scale=8.0, window=8, windowed=(0, 1), softcap=30.0,
    ),
    "lfm2": Tiny(architecture="lfm2", n_layer=4, neox=True, qk_norm=True, convolutions=(0, 1, 3)),
}  # fmt: skip


Passes = str | Sequence[str]


class Counting(CpuBackend):
    """Knows the kernels of the plan that it made last."""

    def plan(self, steps: Sequence[Step], places: Places) -> CpuPlan:
        made = super().plan(steps, places)
        self.kernels = made.kernels
        return made


def context(
    model: Model, passes: Passes, *, flash_attn: bool = True, n_seq_max: int = 1
) -> tuple[Context, Counting]:
    """Without passes no products share their activations either."""
    backend = Counting(2, share_activations=passes != "none")
    made = Context(
        model,
        [backend],
        n_ctx=64 * n_seq_max,
        n_seq_max=n_seq_max,
        flash_attn=flash_attn,
        passes=passes,
    )
    return made, backend


def logits(model: Model, passes: Passes, flash_attn: bool) -> tuple[NDArray[np.float32], list[int]]:
    """Of a prompt, of tokens one by one, and of many sequences; with records for each."""
    alone, backend = context(model, passes, flash_attn=flash_attn)
    parts = [alone.decode(TOKENS[:11], all_logits=True).copy()]
    n_records = [len(backend.kernels)]
    for token in TOKENS[11:]:
        parts.append(alone.decode([token]).copy())
    n_records.append(len(backend.kernels))
    several, backend = context(model, passes, flash_attn=flash_attn, n_seq_max=3)
    for seq, n in enumerate((5, 9, 5)):
        batch = Batch()
        batch.add_sequence(seq, TOKENS[seq : seq + n], 0, all_outputs=True)
        parts.append(several.decode_batch(batch).copy())
    batch = Batch()
    for seq, n in enumerate((5, 9, 5)):
        batch.add_sequence(seq, TOKENS[seq + n : seq + n + 2], n, all_outputs=True)
    parts.append(several.decode_batch(batch).copy())
    n_records.append(len(backend.kernels))
    return np.concatenate(parts), n_records


def tiny(folder: Path, name: str) -> Model:
    return load_model(GGUFFile.open(write_model(folder / "tiny.gguf", MODELS[name])))


@pytest.mark.placed
@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "separate ops"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_have_the_same_bits(tmp_path: Path, name: str, flash_attn: bool) -> None:
    model = tiny(tmp_path, name)
    want, unfused = logits(model, "none", flash_attn)
    got, fused = logits(model, "all", flash_attn)
    np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))
    assert all(few < many for few, many in zip(fused, unfused, strict=True))


@pytest.mark.placed
@pytest.mark.parametrize("name", ["llama q8_0", "gemma3"])
@pytest.mark.parametrize("one", PASSES)
def test_each_pass_alone_has_the_same_bits(tmp_path: Path, name: str, one: str) -> None:
    model = tiny(tmp_path, name)
    np.testing.assert_array_equal(logits(model, [one], True)[0], logits(model, "none", True)[0])
    others = [name for name in PASSES if name != one]
    np.testing.assert_array_equal(logits(model, others, True)[0], logits(model, "none", True)[0])


@pytest.mark.parametrize("name", MODELS)
def test_the_reference_has_the_same_bits(tmp_path: Path, name: str) -> None:
    """It computes a step as its nodes one after another: what a pass makes one is worth that."""
    model = tiny(tmp_path, name)
    got, want = (
        [made.decode(TOKENS[:5], all_logits=True).copy(), made.decode(TOKENS[5:6]).copy()]
        for made in (
            Context(model, [ReferenceBackend()], n_ctx=16, passes=passes)
            for passes in ("all", "none")
        )
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32))


@pytest.mark.parametrize("name", MODELS)
def test_arenas_get_smaller(tmp_path: Path, name: str) -> None:
    """Where a gated unit's products were the most there was at a time, without scale or bias."""
    graph = build_graph(tiny(tmp_path, name), 256)
    n_fused, n_unfused = (
        allocate(graph, scheduled(graph, [CpuBackend(1)], passes=passes).splits).arena_bytes[HOST]
        for passes in ("all", "none")
    )
    assert n_fused <= n_unfused
    assert n_fused < n_unfused or name in ("llama q8_0", "lfm2")


def test_passes_that_are_off_are_told(tmp_path: Path) -> None:
    file = GGUFFile.open(write_model(tmp_path / "tiny.gguf", MODELS["llama"]))
    for passes, row in (
        ("all", None),
        (["norm", "glu"], "without residual, rope, bias, scan, products, stores"),
    ):
        made = Context(load_model(file), [ReferenceBackend()], n_ctx=16, passes=passes)
        made.warm_up()
        rows = dict(
            line.split(maxsplit=1) for line in summary(file, made, 8, 128, "off", 0.0).splitlines()
        )
        assert rows.get("passes") == row


@pytest.mark.placed
@pytest.mark.parametrize(
    ("name", "unfused", "fused"),
    [
        ("llama", 63, 42),
        ("llama q8_0", 87, 65),  # scales stand between products and what could join them
        ("odd sizes", 44, 30),
        ("experts", 62, 48),
        ("qwen2", 52, 30),
        ("qwen3", 52, 34),
        ("gemma3", 91, 52),
        ("lfm2", 92, 64),
    ],
)
def test_records_of_a_step(tmp_path: Path, name: str, unfused: int, fused: int) -> None:
    model = tiny(tmp_path, name)
    assert _records_of_a_step(model, "none") == unfused
    assert _records_of_a_step(model, "all") == fused
    for n_tokens in (2, 7, 40):  # of a prompt as many
        assert _records_of_a_prompt(model, n_tokens) == fused


@pytest.mark.placed
def test_records_of_a_step_of_a_real_model() -> None:
    model = load_model(GGUFFile.open(shared_path("stories260K.gguf")))
    assert _records_of_a_step(model, "none") == 101
    assert _records_of_a_step(model, "all") == 66
    assert _records_of_a_step(model, ["norm"]) == 101 - 11
    assert _records_of_a_step(model, ["residual"]) == 101 - 2 * 9
    assert _records_of_a_step(model, ["norm", "residual"]) == 101 - 11 - 9
    assert _records_of_a_step(model, ["glu"]) == 101 - 10
    assert _records_of_a_step(model, ["rope"]) == 101 - 5


def _records_of_a_step(model: Model, passes: Passes) -> int:
    """One token after some others."""
    made, backend = context(model, passes)
    made.decode(TOKENS[:3])
    made.decode(TOKENS[3:4])
    return len(backend.kernels)


def _records_of_a_prompt(model: Model, n_tokens: int) -> int:
    made, backend = context(model, "all")
    made.decode((TOKENS * 3)[:n_tokens], all_logits=True)
    return len(backend.kernels)

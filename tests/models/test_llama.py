"""The llama graph against a plain numpy forward pass, and against llama.cpp's logits."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.errors import BadBatch, CacheFull, Unsupported, WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.buffer import HOST
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import type_of
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.assignment import Pin
from ggmlpy.sched.compute import backends_for
from tests.models.tiny import Tiny, forward, write_model
from tests.shared import shared_path

TOKENS = [1, 260, 262, 270, 3, 4, 279, 265, 265, 2, 281, 100]
BACKENDS = ["reference", "cpu"]


def context(
    path: Path,
    backend: str = "reference",
    n_threads: int | None = 2,
    kv: str = "f32",
    flash_attn: bool = True,
    n_ctx: int = 128,
    n_ubatch: int = 512,
    pin: Pin | None = None,
) -> Context:
    return Context(
        load_model(GGUFFile.open(path)),
        backends_for(backend, n_threads),
        n_ctx=n_ctx,
        n_ubatch=n_ubatch,
        type_k=type_of(kv),
        type_v=type_of(kv),
        flash_attn=flash_attn,
        pin=pin,
    )


def nmse(got: NDArray[np.float32], want: NDArray[np.float64]) -> float:
    wide = want.astype(np.float64)
    return float(((got - wide) ** 2).sum() / (wide**2).sum())


VARIANTS = {
    "plain": Tiny(),
    "tied": Tiny(tied=True),
    "biases": Tiny(biases=True),
    "scales": Tiny(scales=True),
    "large heads": Tiny(head_size=24, n_rot=24),
    "multi-head": Tiny(n_head_kv=4),
    "multi-query": Tiny(n_head_kv=1),
    "partly rotated": Tiny(n_rot=8),
    "frequency factors": Tiny(freq_factors=True),
    "linear scaling": Tiny(linear_factor=4.0),
    "YaRN": Tiny(yarn_factor=4.0, freq_base=500.0),
    "experts": Tiny(n_expert=4, n_expert_used=2),
    "experts with scales": Tiny(n_expert=4, n_expert_used=2, scales=True),
    "scales and biases": Tiny(scales=True, biases=True),
    "one expert used": Tiny(n_expert=3, n_expert_used=1),
    "odd sizes": Tiny(n_embd=60, n_head=3, n_head_kv=1, n_rot=20, n_ff=44),
}


@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "separate ops"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_a_plain_forward_pass(
    tmp_path: Path, variant: str, backend: str, flash_attn: bool
) -> None:
    model = VARIANTS[variant]
    path = write_model(tmp_path / "tiny.gguf", model)
    got = context(path, backend, flash_attn=flash_attn).decode(TOKENS, all_logits=True)
    assert nmse(got, forward(model, TOKENS)) < 1e-10


@pytest.mark.parametrize("weight_type", ["f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_expert", [0, 4])
def test_weight_types(tmp_path: Path, backend: str, weight_type: str, n_expert: int) -> None:
    """On cpu quantised products round the activations to int8, as ggml's do; so does the oracle.

    A last bit elsewhere can move an activation across a rounding step: hence the wider limit.
    """
    model = Tiny(weight_type=weight_type, n_expert=n_expert, n_expert_used=n_expert // 2)
    path = write_model(tmp_path / "tiny.gguf", model)
    got = context(path, backend).decode(TOKENS, all_logits=True)
    rounds = backend == "cpu" and weight_type.startswith("q")
    want = forward(model, TOKENS, int8_activations=rounds)
    assert nmse(got, want) < (1e-6 if rounds else 1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kv", "limit"), [("f32", 1e-6), ("f16", 1e-4)])
@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "separate ops"])
def test_stories260k_has_llama_cpps_logits(
    backend: str, kv: str, limit: float, flash_attn: bool
) -> None:
    saved = np.load(shared_path("reference/stories260K_logits.npz"))
    model = context(shared_path("stories260K.gguf"), backend, kv=kv, flash_attn=flash_attn)
    got = model.decode(saved["tokens"].tolist(), all_logits=True)
    assert nmse(got, saved["logits"]) < limit


# --- determinism --------------------------------------------------------------------------------

MODELS = {
    "f32": Tiny(),
    "f16 experts": Tiny(weight_type="f16", n_expert=4, n_expert_used=2),
    "q8_0": Tiny(weight_type="q8_0"),
    "q4_0": Tiny(weight_type="q4_0", biases=True),
}


@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "separate ops"])
@pytest.mark.parametrize("model", MODELS)
def test_logits_are_bitwise_the_same_however_the_tokens_are_cut(
    tmp_path: Path, model: str, flash_attn: bool
) -> None:
    """1 and 2 threads, the whole prompt at once, in chunks of any size, and token by token."""
    path = write_model(tmp_path / "tiny.gguf", MODELS[model])
    tokens = TOKENS * 3
    want = context(path, "cpu", 1, "f16", flash_attn).decode(tokens, all_logits=True).copy()
    for n_threads in (1, 2, 3):
        for n_ubatch in (512, 1, 5, 16):
            run = context(path, "cpu", n_threads, "f16", flash_attn, n_ubatch=n_ubatch)
            got = run.decode(tokens, all_logits=True)
            np.testing.assert_array_equal(got, want, f"{n_threads} threads, ubatch {n_ubatch}")
    one_by_one = context(path, "cpu", 2, "f16", flash_attn)
    for at, token in enumerate(tokens):
        np.testing.assert_array_equal(one_by_one.decode([token])[-1], want[at])


def test_stories260k_is_bitwise_the_same_however_the_tokens_are_cut() -> None:
    path = shared_path("stories260K.gguf")
    tokens = np.load(shared_path("reference/stories260K_logits.npz"))["tokens"].tolist()
    want = context(path, "cpu", 1, "f16").decode(tokens, all_logits=True).copy()
    for n_threads, n_ubatch in ((2, 512), (2, 8), (1, 1), (2, 37)):
        run = context(path, "cpu", n_threads, "f16", n_ubatch=n_ubatch)
        np.testing.assert_array_equal(run.decode(tokens, all_logits=True), want)


# --- the context's bookkeeping ------------------------------------------------------------------


def test_plans_are_built_once_for_each_shape(tmp_path: Path) -> None:
    run = context(write_model(tmp_path / "tiny.gguf", Tiny(n_ctx=600)), "null", n_ctx=600)
    run.decode(TOKENS)
    assert run.n_plans_built == 1
    for _ in range(200):
        run.decode([5])
    assert run.n_plans_built == 2
    run.memory.seq_rm(0)
    run.decode(TOKENS[:3])
    run.decode([5])
    assert run.n_plans_built == 2


def test_a_failed_decode_leaves_the_cache_as_it_was(tmp_path: Path) -> None:
    run = context(write_model(tmp_path / "tiny.gguf", Tiny()), n_ctx=20)
    run.decode(TOKENS)
    with pytest.raises(CacheFull, match="12 more tokens do not fit: 12 of 20 cells"):
        run.decode(TOKENS)
    with pytest.raises(BadBatch, match="token 288 at index 1 is not in the vocabulary of 288"):
        run.decode([1, 288])
    with pytest.raises(BadBatch, match="no tokens"):
        run.decode([])
    assert run.n_past() == 12
    got = run.decode([7])[-1]
    fresh = context(tmp_path / "tiny.gguf").decode([*TOKENS, 7])[-1]
    np.testing.assert_array_equal(got, fresh)


def test_truncating_and_going_on_is_the_same_as_never_having_gone_there(tmp_path: Path) -> None:
    run = context(write_model(tmp_path / "tiny.gguf", Tiny()))
    run.decode(TOKENS)
    run.memory.seq_rm(0, 5)
    assert run.n_past() == 5
    got = run.decode([9, 10], all_logits=True).copy()
    want = context(tmp_path / "tiny.gguf").decode([*TOKENS[:5], 9, 10], all_logits=True)[5:]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.placed
def test_peak_memory_is_far_below_the_sum_of_all_values(tmp_path: Path) -> None:
    run = context(write_model(tmp_path / "tiny.gguf", Tiny(n_layer=6)), "null")
    run.decode(TOKENS)
    (plan,) = run.plans.plans.values()
    allocation = plan.executable.allocation
    assert allocation.arena_bytes[HOST] <= 1.3 * allocation.live_bytes[HOST]
    assert allocation.total_bytes[HOST] > 5 * allocation.arena_bytes[HOST]


# --- bad files ----------------------------------------------------------------------------------


CONTRADICTIONS: list[tuple[dict[str, object], type[Exception], str]] = [
    (
        {"general__architecture": "rwkv99"},
        Unsupported,
        r'"rwkv99" is not supported; .* list the \d+ that are, such as "rwkv7" and "rwkv6"$',
    ),
    ({"general__architecture": None}, WeightError, '"general.architecture" is missing'),
    ({"llama__block_count": None}, WeightError, '"llama.block_count" is missing'),
    ({"llama__block_count": "two"}, WeightError, '"llama.block_count" has type str'),
    ({"llama__block_count": 0}, WeightError, '"llama.block_count" is 0, must be at least 1'),
    (
        {"llama__block_count": 3},
        WeightError,
        '_count" is 3, must be at most 2, the layers with tensors blk',
    ),
    ({"llama__attention__head_count_kv": 3}, WeightError, "is 3, must be a divisor of 4 heads"),
    ({"llama__embedding_length": 128}, WeightError, r'"token_embd.weight" is \[64, 288\].*\[128,'),
    (
        {"llama__feed_forward_length": 64},
        WeightError,
        r'"blk.0.ffn_gate.weight" is \[64, 96\].*64\]',
    ),
    ({"llama__rope__dimension_count": 15}, WeightError, "is 15, must be even and at most 16"),
    (
        {"llama__rope__scaling__type": "ntk"},
        WeightError,
        'is "ntk", must be none, linear, yarn or longrope',
    ),
    ({"llama__rope__freq_base": 0.0}, WeightError, 'freq_base" is 0.0, must be a finite number'),
    (
        {"llama__rope__scaling__factor": float("inf")},
        WeightError,
        "is inf, must be 0, or a finite number",
    ),
    (
        {"llama__attention__layer_norm_rms_epsilon": -1.0},
        WeightError,
        'epsilon" is -1.0, must be 0, or a finite number above 0',
    ),
    ({"llama__expert_count": 4}, WeightError, "is 0, must be 1 to 4"),
]


@pytest.mark.parametrize(("changes", "error", "message"), CONTRADICTIONS)
def test_files_that_contradict_themselves(
    tmp_path: Path, changes: dict[str, object], error: type[Exception], message: str
) -> None:
    path = write_model(tmp_path / "bad.gguf", Tiny(), **changes)
    with pytest.raises(error, match=message) as caught:
        load_model(GGUFFile.open(path))
    assert str(caught.value).startswith("bad.gguf: ")


# --- part of a graph here, part there -----------------------------------------------------------


@pytest.mark.placed
@pytest.mark.parametrize("pattern", ["alternate", "attention on reference", "layer 1 on reference"])
@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "separate ops"])
def test_a_graph_split_between_backends_gives_the_same_logits(
    tmp_path: Path, pattern: str, flash_attn: bool
) -> None:
    """The cpu and the reference backend in one graph: both use the arena of the host."""
    path = write_model(tmp_path / "tiny.gguf", Tiny())
    turn = itertools.cycle(["cpu", "reference"])

    def pin(node: Tensor) -> str:
        assert node.op is not None
        if pattern == "alternate":
            return next(turn)
        if pattern == "attention on reference":
            attention = ("flash_attn_ext", "soft_max", "rope")
            return "reference" if node.op.name.startswith(attention) else "cpu"
        return "reference" if node.name.partition(" ")[0].endswith("-1") else "cpu"

    run = context(path, "cpu", flash_attn=flash_attn, pin=pin)
    got = run.decode(TOKENS, all_logits=True)
    assert nmse(got, forward(Tiny(), TOKENS)) < 1e-10
    (plan,) = run.plans.plans.values()
    splits = plan.executable.schedule.splits
    assert {s.backend.name for s in splits} == {"cpu", "reference"}
    assert len(splits) >= 3
    assert not any(split.copies for split in splits)

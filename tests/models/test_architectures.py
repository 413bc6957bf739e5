"""Every architecture on a tiny model: llama.cpp's logits, and the same bits in every company."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.peer_logits import N_DECODE, N_PROMPT, SEED
from ggmlpy import ops
from ggmlpy.backends import get_backend
from ggmlpy.backends.base import Backend
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import zeros
from ggmlpy.graph.types import F32
from ggmlpy.memory.batch import Batch
from ggmlpy.models import Model, load_model
from ggmlpy.ops import activations
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.models.checks import nmse, repeated_names
from tests.models.seeded import KEPT_ROWS, N_VOCAB, RECORDED, check_recorded, write_seeded
from tests.models.seeded_specs import SPECS

TOKENS = np.random.default_rng(SEED).integers(N_VOCAB, size=N_PROMPT + N_DECODE).tolist()
KEPT = dict(np.load(RECORDED))
RESULTS = {key.partition("/")[0]: key for key in KEPT if not key.endswith("/digest")}
NAMES = sorted(RESULTS.keys() & SPECS.keys())
# The many layers of the others are those of a smaller model of their family.
SHALLOW = [name for name in sorted(SPECS) if SPECS[name].keys.get("block_count", 0) < 40]
# Ubatches are much smaller than this prompt, and the cells of windows are used again.
N_UBATCH = 16
GELU = activations.gelu
N_OF_PROMPT = sum(row < N_PROMPT for row in KEPT_ROWS)


def loaded(folder: Path, name: str) -> Model:
    path = write_seeded(folder, name, SPECS[name], strict=True)
    if name in RESULTS:
        check_recorded(path, name, str(KEPT[f"{name}/digest"]))
    return load_model(GGUFFile.open(path))


def context(model: Model, backend: str | list[Backend] = "cpu", **options: object) -> Context:
    options = {"n_ctx": 128, "n_ubatch": N_UBATCH, "type_k": F32, "type_v": F32, **options}
    return Context(model, backends_for(backend, 2), **options)  # type: ignore[arg-type]


def in_turn(run: Context) -> NDArray[np.float32]:
    """The logits of all tokens, or the embeddings: the prompt, then a token at a time."""
    if not run.is_causal:
        return run.decode(TOKENS[:N_PROMPT], all_logits=True).copy()
    if run.encoder is not None:
        run.encode(TOKENS[:N_PROMPT])
    batches = [TOKENS[:N_PROMPT], *([token] for token in TOKENS[N_PROMPT:])]
    return np.concatenate([run.decode(batch, all_logits=True).copy() for batch in batches])


def rounded_gelu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """llama.cpp's: x and the result are rounded to f16."""
    y = GELU(x.astype(np.float32).astype(np.float16).astype(np.float64))
    return y.astype(np.float32).astype(np.float16).astype(np.float64)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "separate ops"])
def test_logits_are_llama_cpps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, flash_attn: bool
) -> None:
    model, want = loaded(tmp_path, name), KEPT[RESULTS[name]]
    if not model.hparams.is_causal:
        want = want[:N_OF_PROMPT]
    rows = list(KEPT_ROWS)[: len(want)]
    run = context(model, flash_attn=flash_attn, n_ubatch=64)
    got = in_turn(run)[rows]
    assert repeated_names(run.last_graph) == []
    if not SPECS[name].has_gelu:
        assert nmse(got, want) < 1e-10
        return
    exact = in_turn(context(model, "reference", flash_attn=flash_attn, n_ubatch=64))[rows]
    assert nmse(got, exact) < 1e-6
    op = ops.gelu(zeros("f32", (1,))).op
    monkeypatch.setattr(type(op), "function", staticmethod(rounded_gelu))
    monkeypatch.setattr(activations, "gelu", rounded_gelu)
    rounded = in_turn(context(model, "reference", flash_attn=flash_attn, n_ubatch=64))[rows]
    # Where the two round to other neighbours, few elements differ by 5e-4 of their value.
    assert nmse(rounded, want) < 1e-5


@pytest.mark.parametrize("name", SHALLOW)
def test_bits_are_the_same_in_every_company(tmp_path: Path, name: str) -> None:
    """Alone; among 8 sequences of unequal lengths; without fused steps; with half of the layers on
    a device whose memory numpy cannot see."""
    model = loaded(tmp_path, name)
    must_fit = not context(model, "null").is_causal or model.encoder is not None
    n_ubatch = 64 if must_fit else N_UBATCH
    want = in_turn(context(model, n_ubatch=n_ubatch))
    np.testing.assert_array_equal(
        in_turn(context(model, n_ubatch=n_ubatch, passes="none")), want, "passes"
    )
    again = loaded(tmp_path, name)
    cpu = get_backend("cpu", 2)
    # Only the hash of n-grams, a function of Python, runs on the reference backend.
    rest = [get_backend("reference", 1)] if name == "qwen4exp" else []
    half = context(
        again,
        [MockBackend(seed=1, inner=cpu), cpu, *rest],
        n_ubatch=n_ubatch,
        n_gpu_layers=model.n_block // 2,
    )
    np.testing.assert_array_equal(in_turn(half), want, "mock")
    among = context(
        model, n_ctx=8 * 64, n_ctx_seq=64, n_seq_max=8, n_ubatch=8 * n_ubatch, kv_layout="unified"
    )
    prompts = Batch()
    lengths = [3, N_PROMPT, 1, 9, 17, 2, 8, 5]
    for seq, n in enumerate(lengths):
        prompts.add_sequence(seq, TOKENS[:n] if seq == 1 else TOKENS[-n:], 0, all_outputs=True)
    if among.encoder is not None:
        sources = Batch()
        for seq, n in enumerate(reversed(lengths)):
            source = TOKENS[:N_PROMPT] if seq == 1 else TOKENS[-n:]
            sources.add_sequence(seq, source, 0)
        among.encode_batch(sources)
    rows = slice(lengths[0], lengths[0] + N_PROMPT)
    np.testing.assert_array_equal(among.decode_batch(prompts)[rows], want[:N_PROMPT], "among 8")
    assert repeated_names(among.last_graph) == []
    for i, token in enumerate(TOKENS[N_PROMPT:] if among.is_causal else []):
        step = Batch()
        for seq, n in enumerate(lengths):
            step.add_sequence(seq, [token if seq == 1 else 7], n + i, all_outputs=True)
        np.testing.assert_array_equal(among.decode_batch(step)[1], want[N_PROMPT + i], "a step")

"""Rotation of quantised K and V: it changes nothing but rounding, is llama.cpp's, and goes along
with states and shifts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.peer_logits import N_DECODE, N_PROMPT, SEED
from ggmlpy.backends import get_backend
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.errors import StateError, Unsupported
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.buffer import BufferType
from ggmlpy.graph.quants import to_float
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F16, F32, Q8_0, type_of
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.rotation import (
    NO_ROTATION,
    Rotation,
    check_rotation,
    hadamard,
    rotation_of,
)
from ggmlpy.memory.state import put_state, take_state
from ggmlpy.memory.state_file import from_bytes, to_bytes
from ggmlpy.models import Model, load_model
from ggmlpy.models.memory import AttentionLayers, KVSizes
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.models.checks import FLASH, nmse
from tests.models.seeded import KEPT_ROWS, N_VOCAB, Seeded, digest_of, write_seeded
from tests.models.seeded_specs import SPECS
from tests.models.tiny import Tiny, forward, write_model
from tests.tools.record_kv_rotation import MODELS, RECORDED

TOKENS = np.random.default_rng(SEED).integers(N_VOCAB, size=N_PROMPT + N_DECODE).tolist()
KEPT = dict(np.load(RECORDED))
# Both round q, and sums in another order. Where it is rounded otherwise K and V differ by a step.
LIMITS = {"q8_0": 2e-4, "q5_1": 3e-3, "q4_0": 6e-3}
HEADS_64 = Tiny(n_head=2, n_head_kv=1, head_size=64, n_rot=64)
WINDOWS = Tiny(
    "gemma3", n_layer=3, n_head=2, n_head_kv=1, head_size=64, n_rot=64, qk_norm=True, neox=True,
    post_norms=True, gelu=True, window=6, windowed=(0, 2), embedding_scale=8.0,
)  # fmt: skip


def seeded(folder: Path, name: str, of: Seeded) -> Model:
    return load_model(GGUFFile.open(write_seeded(folder, name, of)))


def tiny(folder: Path, model: Tiny = HEADS_64) -> Model:
    return load_model(GGUFFile.open(write_model(folder / "model.gguf", model)))


def context(model: Model, kv: str = "q8_0", backend: Any = "cpu", **options: Any) -> Context:
    type = type_of(kv)
    options = {"n_ctx": 128, "n_ubatch": 64, "type_k": type, "type_v": type, **options}
    return Context(model, backends_for(backend, 2), **options)


def in_turn(run: Context, n_prompt: int = N_PROMPT) -> NDArray[np.float32]:
    """The logits of all tokens: the prompt, which is the source too, then a token at a time."""
    if run.encoder is not None:
        run.encode(TOKENS[:n_prompt])
    batches = [TOKENS[:n_prompt], *([token] for token in TOKENS[n_prompt:])]
    return np.concatenate([run.decode(batch, all_logits=True).copy() for batch in batches])


@pytest.fixture
def rotated_f32(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Unless `kv_rotation` is False, caches are rotated that store a V: in f32, which rounds
    nothing, and in blocks of any power of two."""

    def blocks(size: KVSizes, type_k: Any, type_v: Any, kv_rotation: bool | None) -> Rotation:
        k, v = size.n_embd_head_k, size.n_embd_head_v
        return NO_ROTATION if kv_rotation is False or not v else Rotation(k & -k, min(64, v & -v))

    monkeypatch.setattr("ggmlpy.memory.store.rotation_of", blocks)
    yield


# --- the matrix, and which blocks ---


@pytest.mark.parametrize("n", [1, 2, 64, 128, 256])
def test_the_matrix_has_the_signs_of_common_bits(n: int) -> None:
    index = np.arange(n)
    common = np.bitwise_count(index[:, None] & index)
    np.testing.assert_allclose(hadamard(n), (-1.0) ** common / np.sqrt(n), rtol=1e-7)
    np.testing.assert_allclose(hadamard(n) @ hadamard(n), np.eye(n), atol=1e-6)


@pytest.mark.parametrize(
    ("k", "v", "default", "asked"),
    [
        (64, 64, (64, 64), (64, 64)),
        (128, 128, (128, 64), (128, 64)),
        (192, 128, (64, 64), (64, 64)),
        (256, 512, (256, 64), (256, 64)),
        (96, 32, (0, 0), (32, 32)),
        (64, 80, (64, 0), (64, 0)),
        (576, 0, (0, 0), (0, 0)),  # latent: V is a part of K
    ],
)
def test_blocks(k: int, v: int, default: tuple[int, int], asked: tuple[int, int]) -> None:
    size = KVSizes(k, v, 2)
    assert rotation_of(size, Q8_0, Q8_0, None) == Rotation(*default)
    assert rotation_of(size, Q8_0, Q8_0, True) == Rotation(*asked)
    assert rotation_of(size, Q8_0, F16, None) == Rotation(default[0], 0)
    assert rotation_of(size, F32, Q8_0, None) == Rotation(0, default[1])
    assert not rotation_of(size, Q8_0, Q8_0, False)


def test_a_rotation_that_cannot_be_is_refused(tmp_path: Path) -> None:
    model = tiny(tmp_path)
    with pytest.raises(Unsupported, match="K is f16 and V is f16: only what is stored in a quant"):
        context(model, "f16", kv_rotation=True)
    latent = AttentionLayers({0: KVSizes(576, 0, 1)})
    with pytest.raises(Unsupported, match="heads are K 576 and V a part of K: the size must be a"):
        check_rotation([latent], Q8_0, Q8_0, True)
    check_rotation([latent], Q8_0, Q8_0, None)
    # By default there is none then, and nothing is said.
    assert not context(model, "f16").memory.caches[0].store.matrices
    of_32 = tiny(tmp_path, replace(HEADS_64, head_size=32, n_rot=32))
    assert not context(of_32).memory.caches[0].store.matrices
    assert context(of_32, kv_rotation=True).memory.caches[0].store.matrices


# --- logits ---


@FLASH
@pytest.mark.parametrize("model", [HEADS_64, WINDOWS], ids=["full", "windows"])
@pytest.mark.usefixtures("rotated_f32")
def test_logits_are_those_of_a_plain_forward_pass(
    tmp_path: Path, model: Tiny, flash_attn: bool
) -> None:
    run = context(tiny(tmp_path, model), "f32", flash_attn=flash_attn)
    assert nmse(in_turn(run, 20), forward(model, TOKENS)) < 1e-10


@FLASH
@pytest.mark.parametrize("name", ["falcon", "gpt-oss", "gemma4", "bloom", "qwen3next", "t5"])
@pytest.mark.usefixtures("rotated_f32")
def test_every_form_of_attention_rotates(tmp_path: Path, name: str, flash_attn: bool) -> None:
    """Fused q, k, v; sinks; K and V of other layers; ALiBi; gates; distances and an encoder."""
    model = seeded(tmp_path, name, SPECS[name])
    want = in_turn(context(model, "f32", flash_attn=flash_attn, kv_rotation=False))
    run = context(model, "f32", flash_attn=flash_attn)
    assert any(cache.store.matrices for cache in run.memory.caches)
    assert nmse(in_turn(run), want) < 1e-9


@FLASH
@pytest.mark.parametrize("kv", LIMITS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_llama_cpps(tmp_path: Path, name: str, kv: str, flash_attn: bool) -> None:
    path = write_seeded(tmp_path, name, MODELS[name])
    assert digest_of(path) == KEPT[f"{name}/digest"], "run tests/tools/record_kv_rotation.py again"
    model, want = load_model(GGUFFile.open(path)), KEPT[f"{name}/{kv}"]
    got = in_turn(context(model, kv, flash_attn=flash_attn))[list(KEPT_ROWS)]
    plain = in_turn(context(model, kv, flash_attn=flash_attn, kv_rotation=False))[list(KEPT_ROWS)]
    assert nmse(got, want) < LIMITS[kv]
    assert 3 * nmse(got, want) < nmse(plain, want)  # other blocks would be as far as none


@pytest.mark.parametrize("kv_layout", ["split", "unified", "paged"])
def test_bits_are_the_same_in_every_company(tmp_path: Path, kv_layout: str) -> None:
    """Cut otherwise; on other numbers of threads; among others; on a device; without passes."""
    model = tiny(tmp_path, WINDOWS)
    want = in_turn(context(model, "q4_0"))
    assert in_turn(context(model, "q4_0", n_ubatch=5, kv_layout=kv_layout)).tobytes() == (
        want.tobytes()
    )
    one_thread = Context(
        model, backends_for("cpu", 1), n_ctx=128, type_k=type_of("q4_0"), type_v=type_of("q4_0"),
        passes="none", kv_layout=kv_layout,
    )  # fmt: skip
    np.testing.assert_array_equal(in_turn(one_thread, 1), want)
    devices = [MockBackend(seed=1, inner=get_backend("cpu", 2)), get_backend("cpu", 2)]
    half = context(tiny(tmp_path, WINDOWS), "q4_0", devices, n_gpu_layers=2, kv_layout=kv_layout)
    np.testing.assert_array_equal(in_turn(half), want)
    among = context(model, "q4_0", n_ctx=512, n_seq_max=4, n_ubatch=256, kv_layout=kv_layout)
    batch = Batch()
    for seq, n in enumerate((5, len(TOKENS), 1, 17)):
        batch.add_sequence(seq, TOKENS[:n] if seq == 1 else TOKENS[-n:], 0, all_outputs=True)
    np.testing.assert_array_equal(among.decode_batch(batch)[5 : 5 + len(TOKENS)], want)


# --- what is stored ---


def test_matrices_lie_with_their_layers_and_are_counted(tmp_path: Path) -> None:
    device = MockBackend(seed=1, inner=get_backend("cpu", 2))
    wide = replace(HEADS_64, n_layer=3, head_size=128, n_rot=128)
    sizes = []
    for kv_rotation in (None, False):
        backends = [device, get_backend("cpu", 2)]
        run = context(
            tiny(tmp_path, wide), "q8_0", backends, n_gpu_layers=3, kv_rotation=kv_rotation
        )
        sizes.append(run.memory.n_bytes)
        store = run.memory.caches[0].store
        assert len(store.matrices) == (0 if kv_rotation is False else 3)
        for i, matrices in store.matrices.items():
            memory = memory_of(store.k[i])
            assert [memory_of(matrix) for matrix in matrices] == [memory, memory]
    assert sizes[0] - sizes[1] == 2 * 4 * (128**2 + 64**2)  # once on the host, once on the device


def memory_of(leaf: Tensor | None) -> BufferType:
    assert leaf is not None and leaf.place is not None
    return leaf.place.buffer.type


@pytest.mark.usefixtures("rotated_f32")
def test_what_is_stored_is_rotated(tmp_path: Path) -> None:
    model = tiny(tmp_path, replace(HEADS_64, head_size=128, n_rot=128))
    rows = []
    for kv_rotation in (None, False):
        run = context(model, "f32", kv_rotation=kv_rotation)
        run.decode(TOKENS)
        rows.append(take_state(run.memory, 0).layers[0])
    assert (rows[0].rotation, rows[1].rotation) == (Rotation(128, 64), Rotation())
    for got, plain, n in ((rows[0].k, rows[1].k, 128), (rows[0].v, rows[1].v, 64)):
        blocks = to_float(plain, F32).reshape(-1, n).astype(np.float64)
        index = np.arange(n)
        signs = (-1.0) ** np.bitwise_count(index[:, None] & index)
        want = (blocks @ signs / np.sqrt(n)).reshape(len(TOKENS), -1)
        np.testing.assert_allclose(to_float(got, F32), want, atol=1e-5)


@pytest.mark.usefixtures("rotated_f32")
def test_keys_are_shifted_as_without(tmp_path: Path) -> None:
    model = tiny(tmp_path)
    got = []
    for kv_rotation in (None, False):
        run = context(model, "f32", kv_rotation=kv_rotation)
        run.decode(TOKENS)
        run.seq_rm(0, 4, 14)
        run.seq_add(0, 14, None, -10)
        got.append(run.decode(TOKENS[:3], all_logits=True).copy())
    assert nmse(got[0], got[1]) < 1e-9


def test_states_say_how_they_are_rotated(tmp_path: Path) -> None:
    """A memory that rotates as well goes on with the same bits, another one with nearly the same
    logits."""
    model = tiny(tmp_path)
    source = context(model)
    source.decode(TOKENS)
    data = to_bytes({0: take_state(source.memory, 0)})
    want = source.decode([9]).copy()
    state = from_bytes(data)[0][0]
    assert {rows.rotation for rows in state.layers.values()} == {Rotation(64, 64)}
    same = context(model)
    put_state(same.memory, 0, state)
    np.testing.assert_array_equal(same.decode([9]), want)
    for kv, options in (("q8_0", {"kv_rotation": False}), ("f16", {}), ("f32", {})):
        other = context(model, kv, **options)
        put_state(other.memory, 0, state)
        back = context(model)
        put_state(back.memory, 0, take_state(other.memory, 0))
        assert nmse(other.decode([9]), want) < 2e-3  # all K and V are rounded once more
        assert nmse(back.decode([9]), want) < 2e-3


@pytest.mark.parametrize("n", [48, 128, -64])
def test_states_with_blocks_that_cannot_be_are_refused(tmp_path: Path, n: int) -> None:
    model = tiny(tmp_path)
    run = context(model)
    run.decode(TOKENS)
    state = take_state(run.memory, 0)
    layers = {i: replace(rows, rotation=Rotation(n, 64)) for i, rows in state.layers.items()}
    other = from_bytes(to_bytes({0: replace(state, layers=layers)}))[0][0]
    with pytest.raises(StateError, match=f"K of layer 0 is rotated in blocks of {n}: must be a po"):
        put_state(run.memory, 0, other)
    assert run.n_past(0) == len(TOKENS)

"""`fit`: layers and context by the free memory of devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ggmlpy import Llama
from ggmlpy.backends.mock.backend import MockBackend
from ggmlpy.backends.reference import ReferenceBackend
from ggmlpy.errors import AllocationError, ArgumentError
from tests.engine.test_context_memory import device_of
from tests.models.tiny import Tiny, write_model

pytestmark = pytest.mark.placed

LONG = Tiny(n_ctx=1 << 15)
N_ALL = LONG.n_layer + 1


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("fit") / "long.gguf", LONG)


def fitted(path: Path, free: int, **options: Any) -> Llama:
    return Llama(path, backend=[device_of(free), ReferenceBackend()], fit=True, **options)


def used_by_all(path: Path, **options: Any) -> int:
    llm = fitted(path, 1 << 40, **options)
    assert llm.fitted is not None
    return llm.fitted.used["mock"]


def least_free(n_bytes: int) -> int:
    """What must be free for these bytes: an eighth is left."""
    return -(-n_bytes * 8 // 7) + 8


def test_everything_is_on_the_device_where_it_fits(path: Path) -> None:
    llm = fitted(path, 1 << 40)
    assert llm.fitted is not None
    assert (llm.fitted.n_gpu_layers, llm.n_ctx()) == (N_ALL, LONG.n_ctx)


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
def test_what_is_counted_is_what_is_taken(tmp_path: Path, kv: str) -> None:
    heads_64 = replace(LONG, n_head=2, n_head_kv=1, head_size=64, n_rot=64)  # K, V are rotated
    path = write_model(tmp_path / "model.gguf", heads_64)
    llm = fitted(path, 1 << 40, type_k=kv, type_v=kv)
    context = llm._context
    assert llm.fitted is not None
    device = llm._context.backends[0].buffer_type
    weights = llm.model.weights.leaves.values()
    held = sum(
        device.tensor_bytes(w.spec)
        for w in weights
        if w.place is not None and w.place.buffer.type is device
    )
    leaves = [leaf for cache in context.memory.caches for leaf in cache.store.leaves]
    stored = sum(leaf.spec.n_bytes for leaf in leaves)
    taken = held + stored + context.compute_bytes["mock"]
    assert llm.fitted.used["mock"] == pytest.approx(taken, rel=0.02)


@pytest.mark.parametrize("heads", [32, 64])
def test_rotations_are_counted_as_asked_for(tmp_path: Path, heads: int) -> None:
    model = replace(LONG, n_head=2, n_head_kv=1, head_size=heads, n_rot=heads)
    path = write_model(tmp_path / "model.gguf", model)
    used = {
        rotation: used_by_all(path, type_k="q8_0", type_v="q8_0", n_ctx=64, kv_rotation=rotation)
        for rotation in (True, False, None)
    }
    assert used[True] > used[False]
    assert used[None] == used[heads == 64]  # which is what the context does


def test_the_context_is_reduced_first(path: Path) -> None:
    llm = fitted(path, least_free(used_by_all(path)) - (1 << 18))
    assert llm.fitted is not None
    assert llm.fitted.n_gpu_layers == N_ALL
    assert 4096 <= llm.n_ctx() < LONG.n_ctx
    assert llm.n_ctx() % 256 == 0
    more = used_by_all(path, n_ctx=llm.n_ctx() + 256)
    assert least_free(more) > least_free(used_by_all(path)) - (1 << 18)


def test_layers_are_left_to_the_host_next(path: Path) -> None:
    needed = least_free(used_by_all(path, n_ctx=4096))
    counts = []
    for free in (needed, needed - 4096, needed // 2):
        llm = fitted(path, free)
        assert llm.fitted is not None
        assert llm.n_ctx() >= 4096
        counts.append(llm.fitted.n_gpu_layers)
    assert counts[0] == N_ALL > counts[1] >= counts[2]


def test_a_context_that_is_given_is_kept(path: Path) -> None:
    needed = least_free(used_by_all(path, n_ctx=8192))
    llm = fitted(path, needed - 4096, n_ctx=8192)
    assert llm.fitted is not None
    assert llm.n_ctx() == 8192
    assert llm.fitted.n_gpu_layers < N_ALL


def test_no_layer_fits(path: Path) -> None:
    llm = fitted(path, 1024)
    assert llm.fitted is not None
    assert llm.fitted.n_gpu_layers == 0
    backends = [device_of(1024), ReferenceBackend()]
    with pytest.raises(AllocationError, match=r"^nothing fits: mock needs .* has 0.00 GB free"):
        Llama(path, backend=backends, fit=True, override_tensors={"blk": "mock"})


def test_fit_and_layers_contradict(path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"^fit chooses n_gpu_layers, which is 2"):
        fitted(path, 1 << 40, n_gpu_layers=2)


def test_a_device_that_does_not_tell(path: Path) -> None:
    llm = Llama(path, backend=[MockBackend(), ReferenceBackend()], fit=True, n_ctx=256)
    assert llm.fitted is None


def test_an_error_of_memory_says_what_would_fit(path: Path) -> None:
    backends = [device_of(least_free(used_by_all(path, n_ctx=4096))), ReferenceBackend()]
    with pytest.raises(
        AllocationError, match=rf"; what fits is -ngl {N_ALL} -c \d+: mock .* --fit"
    ):
        Llama(path, backend=backends, n_ctx=1 << 15)

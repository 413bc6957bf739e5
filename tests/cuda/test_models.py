"""Tiny models of every architecture on the emulated device: logits beside those of the CPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import Llama
from ggmlpy.backends import get_backend
from ggmlpy.backends.base import Backend
from ggmlpy.backends.cuda.backend import CudaBackend
from ggmlpy.backends.cuda.emulated import EmulatedDriver, available
from ggmlpy.runtime.context import Context
from tests.engine.test_streams import ARCHITECTURES, LONG
from tests.models.tiny import Tiny, write_model

pytestmark = [
    pytest.mark.placed,
    pytest.mark.skipif(available() is not None, reason=str(available())),
]

MIXTURE = Tiny(n_expert=4, n_expert_used=2)
MODELS = ARCHITECTURES | {"llama, a mixture of experts": MIXTURE}
LIMITS = {"f32": 1e-5, "f16": 1e-5, "bf16": 1e-5, "q8_0": 1e-3, "q4_0": 1e-3, "iq4_nl": 1e-3}


def nmse(got: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    wide = expected.astype(np.float64)
    return float(((got - wide) ** 2).sum() / (wide**2).sum())


def logits(path: Path, *backends: Backend) -> NDArray[np.float32]:
    """Of a prompt, then of three decoded tokens, [n, n_vocab]."""
    context = Context.open(path, backend=list(backends), n_ctx=64, n_ubatch=16)
    rows = [context.decode(LONG[:20], all_logits=True).copy()]
    rows += [context.decode([token]).copy() for token in LONG[20:23]]
    return np.concatenate(rows)


@pytest.mark.parametrize("weight_type", LIMITS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_cpu(tmp_path: Path, name: str, weight_type: str) -> None:
    model = dataclasses.replace(MODELS[name], weight_type=weight_type)
    path = write_model(tmp_path / "model.gguf", model)
    cpu = get_backend("cpu", 1)
    device = CudaBackend(EmulatedDriver())
    expected = logits(path, cpu)
    assert nmse(logits(path, device), expected) < LIMITS[weight_type]  # nothing runs on the host


def test_quantised_k_and_v_are_rotated(tmp_path: Path) -> None:
    model = Tiny(n_head=2, n_head_kv=1, head_size=64, n_rot=64)
    path = write_model(tmp_path / "model.gguf", model)
    rows = []
    for backend, kv_rotation in (
        (CudaBackend(EmulatedDriver()), None),
        ("cpu", None),
        ("cpu", False),
    ):
        run = Context.open(
            path, backend=backend, n_ctx=64, type_k="q4_0", type_v="q4_0", kv_rotation=kv_rotation
        )
        rows.append(run.decode(LONG[:20], all_logits=True).copy())
    assert 10 * nmse(rows[0], rows[1]) < nmse(rows[2], rows[1])


def test_layers_on_the_host_and_on_the_device(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", Tiny(weight_type="q8_0"))
    cpu = get_backend("cpu", 1)
    expected = logits(path, cpu)
    for n_gpu_layers in (1, 2):
        device = CudaBackend(EmulatedDriver(seed=n_gpu_layers))
        context = Context.open(
            path, backend=[device, cpu], n_ctx=64, n_ubatch=16, n_gpu_layers=n_gpu_layers
        )
        assert nmse(context.decode(LONG[:20], all_logits=True), expected[:20]) < 1e-3
        assert set(context.ops_by_backend()) == {"cpu", "cuda-emulated"}


def test_layers_on_two_devices(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", Tiny())
    devices = [CudaBackend(EmulatedDriver(f"cuda-emulated:{i}", seed=2 * i)) for i in range(2)]
    expected = logits(path, get_backend("cpu", 1))
    assert nmse(logits(path, *devices), expected) < 1e-5


def test_a_story_is_the_same_with_sampling_on_the_device(tmp_path: Path) -> None:
    """The packaged engine's whole way: prompts, decoding, sampling, several sequences."""
    path = write_model(tmp_path / "model.gguf", Tiny())
    device = CudaBackend(EmulatedDriver())
    with (
        Llama(path, backend=[device], n_ctx=64) as on_device,
        Llama(path, backend="cpu", n_threads=1, n_ctx=64) as on_cpu,
    ):
        for options in ({"temperature": 0}, {"seed": 3, "repeat_penalty": 1.2}):
            texts = [
                llm(LONG[:9], max_tokens=10, **options)["choices"][0]["text"]
                for llm in (on_device, on_cpu)
            ]
            assert texts[0] == texts[1]

"""Architectures on the emulated device alone, with quantised weights, with many layers, and with
half of the layers there: logits beside those of the CPU.

One or two of each family, or with GGMLPY_TEST_EVERY_MODEL=1 all of them.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.backends import get_backend
from ggmlpy.backends.base import Backend
from ggmlpy.backends.cuda.backend import CudaBackend
from ggmlpy.backends.cuda.emulated import EmulatedDriver, available
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.types import F32, TensorType, type_of
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from tests.models.checks import nmse
from tests.models.seeded import Seeded, write_seeded
from tests.models.seeded_specs import SPECS
from tests.models.test_architectures import NAMES, SHALLOW, TOKENS

pytestmark = [
    pytest.mark.placed,
    pytest.mark.skipif(available() is not None, reason=str(available())),
]

EVERY = os.environ.get("GGMLPY_TEST_EVERY_MODEL", "") not in ("", "0")
BLOCKS_OF_32 = (
    *(
        "bert",
        "command-r",
        "deepseek2",
        "gemma2",
        "gemma3n",
        "granitehybrid",
        "jamba",
        "kimi-linear",
    ),
    *("lfm2", "llama4", "mamba2", "minimax-01", "phi3", "qwen3next", "rwkv7", "t5"),
)
EXPERTS = ("glm4moe", "gpt-oss", "qwen3moe")  # whose files are of mxfp4
BLOCKS_OF_256 = ("deepseek2", "falcon-h1", "gemma3", "gpt-oss", "minicpm3", "qwen3", "qwen3moe")
# Those that run layers several times among them.
IN_HALVES = ("gemma3n", "hrm_text", "lfm2", "nanbeige", "qwen3moe", "rwkv6", "t5")
DEEP = sorted(set(NAMES) - set(SHALLOW))  # the others are in test_architectures.py
N_PROMPT, N_WIDE = 5, 256
WIDTHS = ("embedding_length", "feed_forward_length", "expert_feed_forward_length")
# Whose other sizes do not go with such widths.
NOT_WIDE = (
    *("baichuan-13b", "gemma4-experts", "qwen2moe", "qwen35moe", "qwen3next", "qwen3next-older"),
    "qwen4exp",
)


def chosen(names: tuple[str, ...], without: tuple[str, ...] = ()) -> list[str]:
    return [name for name in NAMES if name not in without] if EVERY else list(names)


def wide(spec: Seeded) -> Seeded:
    """The specification with rows of whole blocks of 256."""
    keys = {
        key: N_WIDE if key in WIDTHS and isinstance(value, int) else value
        for key, value in spec.keys.items()
    }
    return dataclasses.replace(spec, keys=keys)


def logits(path: Path, backends: list[Backend], n_gpu_layers: int = -1) -> NDArray[np.float32]:
    """Of a prompt and of a decoded token; of an encoder its embeddings of the prompt."""
    context = Context(
        load_model(GGUFFile.open(path)),
        backends,
        n_ctx=64,
        n_ubatch=16,
        type_k=F32,
        type_v=F32,
        n_gpu_layers=n_gpu_layers,
    )
    prompt, token = TOKENS[:N_PROMPT], TOKENS[N_PROMPT]
    if context.encoder is not None:
        context.encode(prompt)
    rows = [context.decode(prompt, all_logits=True).copy()]
    rows += [context.decode([token]).copy()] if context.is_causal else []
    return np.concatenate(rows)


def check(folder: Path, name: str, spec: Seeded, weight_type: TensorType, limit: float) -> None:
    """On the device alone: what it does not support is an error."""
    path = write_seeded(folder, name, spec, weight_type)
    types = {tensor.type for tensor in GGUFFile.open(path).tensors.values()}
    assert weight_type in types or spec.keys["embedding_length"] % weight_type.block_size
    device: Backend = CudaBackend(EmulatedDriver())
    rest = [get_backend("reference", 1)] if name == "qwen4exp" else []  # its hash of n-grams
    want = logits(path, [get_backend("cpu", 2), *rest])
    assert nmse(logits(path, [device, *rest]), want) < limit


@pytest.mark.parametrize("name", DEEP)
def test_many_layers(tmp_path: Path, name: str) -> None:
    check(tmp_path, name, SPECS[name], F32, 1e-5)


@pytest.mark.parametrize("name", chosen(BLOCKS_OF_32))
def test_q8_0(tmp_path: Path, name: str) -> None:
    check(tmp_path, name, SPECS[name], type_of("q8_0"), 1e-3)


@pytest.mark.parametrize("name", chosen(EXPERTS))
def test_mxfp4(tmp_path: Path, name: str) -> None:
    check(tmp_path, name, SPECS[name], type_of("mxfp4"), 1e-3)


@pytest.mark.parametrize("name", chosen(BLOCKS_OF_256, NOT_WIDE))
def test_q4_k(tmp_path: Path, name: str) -> None:
    check(tmp_path, name, wide(SPECS[name]), type_of("q4_K"), 1e-3)


@pytest.mark.parametrize("name", chosen(IN_HALVES))
def test_half_of_the_layers(tmp_path: Path, name: str) -> None:
    path = write_seeded(tmp_path, name, SPECS[name])
    host = [get_backend("cpu", 2), get_backend("reference", 1)]
    n_block = load_model(GGUFFile.open(path)).n_block
    device: Backend = CudaBackend(EmulatedDriver(seed=1))
    got = logits(path, [device, *host], n_gpu_layers=n_block // 2 + 1)
    assert nmse(got, logits(path, host)) < 1e-5

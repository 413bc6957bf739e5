"""The arguments of llama-cpp-python's `Llama`: what each means here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmlpy.common.callers import warn_caller
from ggmlpy.compat.llama_cpp import constants
from ggmlpy.errors import Unsupported


class NoEffect(UserWarning):
    """An argument that has no effect here was given another value than its default."""


# Arguments without effect: the default, and what to know or to use instead.
_WITHOUT_EFFECT: dict[str, tuple[Any, str]] = {
    "split_mode": (
        constants.LLAMA_SPLIT_MODE_LAYER,
        "layers are divided among devices; ggmlpy.Llama(override_tensors=…) places single tensors",
    ),
    "main_gpu": (0, "ggmlpy.Llama(backend=…) names the devices to use"),
    "tensor_split": (None, "layers are divided equally among devices"),
    "use_mmap": (True, "files are always mapped, and weights packed once for the CPU"),
    "use_mlock": (False, "nothing is locked into memory"),
    "n_threads_batch": (None, "n_threads is used for prompts too"),
    "offload_kqv": (True, "K and V lie where their layer does"),
    "op_offload": (None, "ops run where their weights lie"),
    "swa_full": (None, "layers with a window keep what the window needs"),
    "no_perf": (False, "timings are always taken"),
    "lora_base": (None, "adapters apply to quantised weights directly"),
    "numa": (False, "memory is placed by the system: numactl controls it from outside"),
}

# Arguments that would change results: the default, and what to know.
_REFUSED: dict[str, tuple[Any, str]] = {
    "yarn_ext_factor": (-1.0, "the file's scaling is used"),
    "yarn_attn_factor": (1.0, "the file's scaling is used"),
    "yarn_beta_fast": (32.0, "the file's scaling is used"),
    "yarn_beta_slow": (1.0, "the file's scaling is used"),
    "yarn_orig_ctx": (0, "the file's scaling is used"),
    "rope_freq_base": (0.0, "the file's base is used"),
    "rope_freq_scale": (0.0, "the file's scale is used"),
    "rope_scaling_type": (
        constants.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED,
        "the file's scaling is used",
    ),
    "attention_type": (
        constants.LLAMA_ATTENTION_TYPE_UNSPECIFIED,
        "the file says whether attention is causal",
    ),
    "kv_overrides": (None, "the file's metadata is used"),
    "lora_path": (None, "adapters cannot be loaded"),
}


def check_parameters(given: Mapping[str, Any]) -> None:
    """Issue a NoEffect warning for each argument that has none and was given another value than its
    default. Raises Unsupported for one that would change results and is not available."""
    for name, (default, why) in _REFUSED.items():
        if given[name] is not None and given[name] != default:
            raise Unsupported(f"Llama: {name} is {given[name]!r}: it is not available, {why}")
    for name, (default, why) in _WITHOUT_EFFECT.items():
        if given[name] is not None and given[name] != default:
            warn_caller(f"Llama: {name} has no effect: {why}", NoEffect)

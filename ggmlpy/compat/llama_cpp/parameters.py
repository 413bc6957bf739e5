"""The arguments of llama-cpp-python's `Llama`: what each means here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmlpy.common.callers import warn_caller
from ggmlpy.compat.llama_cpp import constants
from ggmlpy.errors import ArgumentError, Unsupported
from ggmlpy.models.rope_overrides import SCALINGS, RopeOverrides


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
    "yarn_attn_factor": (1.0, "YaRN computes it"),
    "numa": (False, "memory is placed by the system: numactl controls it from outside"),
}

# Arguments that would change results: the default, and what to know.
_REFUSED: dict[str, tuple[Any, str]] = {
    "attention_type": (
        constants.LLAMA_ATTENTION_TYPE_UNSPECIFIED,
        "the file says whether attention is causal",
    ),
}

# Arguments of older versions, which LangChain still gives, with the values that say nothing.
_OLDER: dict[str, tuple[Any, ...]] = {
    "n_parts": (-1,),
    "f16_kv": (True, False),
    "device": (None,),
}


def check_unknown(given: Mapping[str, Any]) -> None:
    """Issue a NoEffect warning for each argument that `Llama` does not have."""
    for name, value in given.items():
        if value not in _OLDER.get(name, ()):
            warn_caller(f"Llama: {name} is no argument of Llama: it has no effect", NoEffect)


def check_parameters(given: Mapping[str, Any]) -> None:
    """Issue a NoEffect warning for each argument that has none and was given another value than its
    default. Raises Unsupported for one that would change results and is not available."""
    for name, (default, why) in _REFUSED.items():
        if given[name] is not None and given[name] != default:
            raise Unsupported(f"Llama: {name} is {given[name]!r}: it is not available, {why}")
    for name, (default, why) in _WITHOUT_EFFECT.items():
        if given[name] is not None and given[name] != default:
            warn_caller(f"Llama: {name} has no effect: {why}", NoEffect)


def rope_overrides(given: Mapping[str, Any]) -> RopeOverrides:
    """The arguments of rotary embeddings; those that llama.cpp takes as unset are left out."""
    scaling = given["rope_scaling_type"]
    unset = (None, constants.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED)
    if scaling not in (*unset, *range(len(SCALINGS))):
        raise ArgumentError(
            f"rope_scaling_type is {scaling!r}: it must be -1 to {len(SCALINGS) - 1}"
        )
    ext_factor = given["yarn_ext_factor"]
    return RopeOverrides(
        scaling=None if scaling in unset else SCALINGS[scaling],
        freq_base=given["rope_freq_base"] or None,
        freq_scale=given["rope_freq_scale"] or None,
        ext_factor=None if ext_factor < 0 else ext_factor,
        beta_fast=_unless(given["yarn_beta_fast"], 32.0),
        beta_slow=_unless(given["yarn_beta_slow"], 1.0),
        n_ctx_orig=given["yarn_orig_ctx"] or None,
    )


def _unless(value: float, default: float) -> float | None:
    """A value, or None for its default, which leaves what the file says."""
    return None if value in (0.0, default) else value

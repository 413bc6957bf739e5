"""The functions of llama.cpp's C interface that scripts call to ask what the library can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ggmlpy.compat.llama_cpp.constants import LLAMA_MAX_DEVICES
from ggmlpy.errors import BackendError

Callback = TypeVar("Callback", bound=Callable[..., Any])

__all__ = [
    "llama_backend_free",
    "llama_backend_init",
    "llama_log_callback",
    "llama_log_set",
    "llama_max_devices",
    "llama_max_parallel_sequences",
    "llama_print_system_info",
    "llama_supports_gpu_offload",
    "llama_supports_mlock",
    "llama_supports_mmap",
]


def absent(name: str) -> AttributeError:
    """The error of a name that llama-cpp-python's package has, or no package."""
    if name.startswith(("llama_", "ggml_", "gguf_", "mtmd_")):
        return AttributeError(
            f"llama_cpp.{name} is part of llama.cpp's C interface, which ggmlpy does not have:"
            " ggmlpy.Context decodes batches, ggmlpy.ops builds graphs"
        )
    return AttributeError(f"module 'llama_cpp' has no attribute {name!r}")


def llama_backend_init() -> None:
    """Nothing is to be done."""


def llama_backend_free() -> None:
    """Nothing is to be done."""


def llama_log_callback(function: Callback) -> Callback:
    """Decorator of functions for `llama_log_set`: the function itself."""
    return function


def llama_log_set(log_callback: Callable[..., Any] | None, user_data: Any = None) -> None:
    """Nothing is logged by callbacks: `verbose=False` keeps a model silent."""


def llama_max_devices() -> int:
    """How many devices a model can lie on."""
    return LLAMA_MAX_DEVICES


def llama_max_parallel_sequences() -> int:
    """How many sequences can run together."""
    return 256


def llama_supports_gpu_offload() -> bool:
    """Whether a backend with memory of its own is there."""
    from ggmlpy.backends import get_backend

    try:
        get_backend("cuda")
    except BackendError:
        return False
    return True


def llama_supports_mmap() -> bool:
    """Files are mapped."""
    return True


def llama_supports_mlock() -> bool:
    """Nothing is locked into memory."""
    return False


def llama_print_system_info() -> bytes:
    """The instructions that the CPU's kernels use."""
    from ggmlpy.backends.cpu.isa import select

    return f"CPU : {select().name}".encode()

"""ggmlpy: a ggml-style compute-graph runtime in Python.

Build lazy tensors with `ops` and run them with `compute`, or load a GGUF file with `Llama` and
generate text.

All names except errors are imported lazily, so that the command line can install its Ctrl-C handler
before numpy loads.
"""

from __future__ import annotations

from ggmlpy.errors import (
    AllocationError,
    ArgumentError,
    BackendError,
    BadBatch,
    CacheFull,
    DownloadError,
    FileError,
    GgmlpyError,
    GGUFError,
    GrammarError,
    IndexOutOfRange,
    KernelError,
    MissingFile,
    MissingPackage,
    SamplingError,
    ShapeError,
    StateError,
    TemplateError,
    TokenizerError,
    Unsupported,
    WeightError,
    WriteError,
)

TYPE_CHECKING = False  # as type checkers know it; importing `typing` would take most of the time
if TYPE_CHECKING:
    from typing import Any

    from ggmlpy import ops
    from ggmlpy.async_llama import AsyncLlama
    from ggmlpy.backends import backend_names, get_backend
    from ggmlpy.common.progress import listening
    from ggmlpy.common.scopes import scope
    from ggmlpy.draft import DraftModel, PromptLookup
    from ggmlpy.engine.engine import Engine
    from ggmlpy.engine.generation import Request
    from ggmlpy.gguf import GGUFFile
    from ggmlpy.grammar import Grammar
    from ggmlpy.graph.graph import Graph
    from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, from_numpy, zeros
    from ggmlpy.graph.types import TYPES, TensorType
    from ggmlpy.llama import Llama
    from ggmlpy.memory.batch import Batch
    from ggmlpy.memory.llama_state import LlamaState
    from ggmlpy.models.lora import LoraAdapter
    from ggmlpy.models.rope_overrides import RopeOverrides
    from ggmlpy.models.weights import WeightWarning
    from ggmlpy.packaged import packaged_model
    from ggmlpy.runtime.context import Context
    from ggmlpy.runtime.context_sizes import ContextWarning
    from ggmlpy.sampling import SamplingParams
    from ggmlpy.sched.compute import compute
    from ggmlpy.sched.placement import PlacementWarning
    from ggmlpy.text.tokenizer import Tokenizer

    __version__: str

_NAMES: dict[str, tuple[str, ...]] = {
    "ops": (),
    "async_llama": ("AsyncLlama",),
    "backends": ("backend_names", "get_backend"),
    "common.progress": ("listening",),
    "common.scopes": ("scope",),
    "draft": ("DraftModel", "PromptLookup"),
    "engine.engine": ("Engine",),
    "engine.generation": ("Request",),
    "gguf": ("GGUFFile",),
    "grammar": ("Grammar",),
    "graph.graph": ("Graph",),
    "graph.tensor": ("Flag", "Tensor", "from_bytes", "from_numpy", "zeros"),
    "graph.types": ("TYPES", "TensorType"),
    "llama": ("Llama",),
    "memory.batch": ("Batch",),
    "memory.llama_state": ("LlamaState",),
    "models.lora": ("LoraAdapter",),
    "models.rope_overrides": ("RopeOverrides",),
    "models.weights": ("WeightWarning",),
    "packaged": ("packaged_model",),
    "runtime.context": ("Context",),
    "runtime.context_sizes": ("ContextWarning",),
    "sampling": ("SamplingParams",),
    "sched.compute": ("compute",),
    "sched.placement": ("PlacementWarning",),
    "text.tokenizer": ("Tokenizer",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names or (module,)}

if not TYPE_CHECKING:  # type checkers would accept any name because of __getattr__

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            globals()[name] = version(__name__)
            return globals()[name]
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module = import_module(f"{__name__}.{_MODULES[name]}")
        value = getattr(module, name) if _NAMES[_MODULES[name]] else module
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, "__version__"})


__all__ = [
    "TYPES",
    "AllocationError",
    "ArgumentError",
    "AsyncLlama",
    "BackendError",
    "BadBatch",
    "Batch",
    "CacheFull",
    "Context",
    "ContextWarning",
    "DownloadError",
    "DraftModel",
    "Engine",
    "FileError",
    "Flag",
    "GGUFError",
    "GGUFFile",
    "GgmlpyError",
    "Grammar",
    "GrammarError",
    "Graph",
    "IndexOutOfRange",
    "KernelError",
    "Llama",
    "LlamaState",
    "LoraAdapter",
    "MissingFile",
    "MissingPackage",
    "PlacementWarning",
    "PromptLookup",
    "Request",
    "RopeOverrides",
    "SamplingError",
    "SamplingParams",
    "ShapeError",
    "StateError",
    "TemplateError",
    "Tensor",
    "TensorType",
    "Tokenizer",
    "TokenizerError",
    "Unsupported",
    "WeightError",
    "WeightWarning",
    "WriteError",
    "backend_names",
    "compute",
    "from_bytes",
    "from_numpy",
    "get_backend",
    "listening",
    "ops",
    "packaged_model",
    "scope",
    "zeros",
]

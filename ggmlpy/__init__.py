"""ggmlpy: a ggml-style compute-graph runtime in Python.

Build lazy tensors with `ops`, run them with `compute`; or load a GGUF file with `Llama` and write.
"""

from ggmlpy import ops
from ggmlpy.backends import backend_names, get_backend
from ggmlpy.batch import Batch
from ggmlpy.compute import compute
from ggmlpy.context import Context
from ggmlpy.context_sizes import ContextWarning
from ggmlpy.engine import Engine
from ggmlpy.errors import (
    AllocationError,
    ArgumentError,
    BackendError,
    BadBatch,
    CacheFull,
    FileError,
    GgmlpyError,
    GGUFError,
    IndexOutOfRange,
    KernelError,
    MissingFile,
    SamplingError,
    ShapeError,
    StateError,
    TemplateError,
    TokenizerError,
    Unsupported,
    WeightError,
)
from ggmlpy.generation import Request
from ggmlpy.gguf_file import GGUFFile
from ggmlpy.graph import Graph
from ggmlpy.llama import Llama
from ggmlpy.llama_state import LlamaState
from ggmlpy.models.weights import WeightWarning
from ggmlpy.packaged import packaged_model
from ggmlpy.sampling import SamplingParams
from ggmlpy.tensor import Flag, Tensor, from_bytes, from_numpy, scope, zeros
from ggmlpy.tokenizer import Tokenizer
from ggmlpy.types import TYPES, TensorType

__all__ = [
    "TYPES",
    "AllocationError",
    "ArgumentError",
    "BackendError",
    "BadBatch",
    "Batch",
    "CacheFull",
    "Context",
    "ContextWarning",
    "Engine",
    "FileError",
    "Flag",
    "GGUFError",
    "GGUFFile",
    "GgmlpyError",
    "Graph",
    "IndexOutOfRange",
    "KernelError",
    "Llama",
    "LlamaState",
    "MissingFile",
    "Request",
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
    "backend_names",
    "compute",
    "from_bytes",
    "from_numpy",
    "get_backend",
    "ops",
    "packaged_model",
    "scope",
    "zeros",
]

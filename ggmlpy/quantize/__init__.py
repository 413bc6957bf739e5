"""Quantisation: a model file with its tensors in other types, and importance matrices.

In: a GGUF file, a file type, an importance matrix. Out: a GGUF file with the bytes that llama.cpp's
llama-quantize makes.

    file_types.py  file types: Q4_K_M, …
    mixture.py     which type each tensor gets
    exempt.py      which tensors stay as they are
    rows.py        rows of f32 to stored blocks, by threads
    kernels/       the compiled quantisers
    keys.py        metadata as it is stored
    writer.py      GGUF files, tensor by tensor
    imatrix.py     importance matrices and their files
    collect.py     importance matrices from a text
    model.py       quantize_model
"""

from ggmlpy.quantize.file_types import ALIASES, FILE_TYPES, FileType, file_type_of
from ggmlpy.quantize.imatrix import Imatrix, Squares
from ggmlpy.quantize.model import Choices, Planned, plan, quantize_model

__all__ = [
    "ALIASES",
    "FILE_TYPES",
    "Choices",
    "FileType",
    "Imatrix",
    "Planned",
    "Squares",
    "file_type_of",
    "plan",
    "quantize_model",
]

"""File types: what most tensors of a quantised model are, by llama.cpp's names and numbers."""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy.errors import ArgumentError
from ggmlpy.graph.types import TYPES, TensorType


@dataclass(frozen=True, slots=True)
class FileType:
    """A file type. Tensors that its mixture does not treat otherwise are `type`."""

    name: str  # Q4_K_M
    id: int  # general.file_type
    type: TensorType
    help: str


def _row(name: str, id: int, type: str, help: str) -> FileType:
    return FileType(name, id, TYPES[type], help)


_ALL = (
    _row("F32", 0, "f32", "32 bits per weight"),
    _row("F16", 1, "f16", "16 bits per weight"),
    _row("BF16", 32, "bf16", "16 bits per weight, with the range of f32"),
    _row("Q8_0", 7, "q8_0", "8.5 bits per weight"),
    _row("Q6_K", 18, "q6_K", "6.56 bits per weight"),
    _row("Q5_K_M", 17, "q5_K", "q5_K, with q6_K in sensitive tensors"),
    _row("Q5_K_S", 16, "q5_K", "5.5 bits per weight"),
    _row("Q5_1", 9, "q5_1", "6 bits per weight"),
    _row("Q5_0", 8, "q5_0", "5.5 bits per weight"),
    _row("Q4_K_M", 15, "q4_K", "q4_K, with q6_K in sensitive tensors"),
    _row("Q4_K_S", 14, "q4_K", "q4_K, with q5_K in the first layers"),
    _row("Q4_1", 3, "q4_1", "5 bits per weight"),
    _row("Q4_0", 2, "q4_0", "4.5 bits per weight"),
    _row("IQ4_NL", 25, "iq4_nl", "4.5 bits per weight, values not evenly spaced"),
    _row("IQ4_XS", 30, "iq4_xs", "4.25 bits per weight, values not evenly spaced"),
    _row("MXFP4_MOE", 38, "mxfp4", "mxfp4 in experts, q8_0 elsewhere"),
    _row("Q3_K_L", 13, "q3_K", "q3_K, with q5_K in sensitive tensors"),
    _row("Q3_K_M", 12, "q3_K", "q3_K, with q4_K and q5_K in sensitive tensors"),
    _row("Q3_K_S", 11, "q3_K", "3.44 bits per weight"),
    _row("Q2_K", 10, "q2_K", "q2_K, with q3_K and q4_K in sensitive tensors"),
    _row("Q2_K_S", 21, "q2_K", "2.63 bits per weight; needs an importance matrix"),
    _row("Q2_0", 41, "q2_0", "2.25 bits per weight"),
    _row("TQ2_0", 37, "tq2_0", "2.06 bits per weight, for ternary models"),
    _row("TQ1_0", 36, "tq1_0", "1.69 bits per weight, for ternary models"),
    _row("Q1_0", 40, "q1_0", "1.13 bits per weight"),
    _row("IQ3_M", 27, "iq3_s", "3.66 bits per weight"),
    _row("IQ3_S", 26, "iq3_s", "3.44 bits per weight"),
    _row("IQ3_XS", 22, "iq3_s", "3.3 bits per weight"),
    _row("IQ3_XXS", 23, "iq3_xxs", "3.06 bits per weight"),
    _row("IQ2_M", 29, "iq2_s", "2.7 bits per weight"),
    _row("IQ2_S", 28, "iq2_xs", "2.5 bits per weight"),
    _row("IQ2_XS", 20, "iq2_xs", "2.31 bits per weight"),
    _row("IQ2_XXS", 19, "iq2_xxs", "2.06 bits per weight"),
    _row("IQ1_M", 31, "iq1_m", "1.75 bits per weight"),
    _row("IQ1_S", 24, "iq1_s", "1.56 bits per weight"),
)
FILE_TYPES: dict[str, FileType] = {file_type.name: file_type for file_type in _ALL}
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_BY_ID = {file_type.id: file_type for file_type in _ALL}


def file_type_of(spec: str | int | FileType) -> FileType:
    """The file type with this name, in any case, or this number. Raises ArgumentError."""
    if isinstance(spec, FileType):
        return spec
    name = str(spec).upper()
    found = FILE_TYPES.get(ALIASES.get(name, name))
    if found is None and name.isdecimal():
        found = _BY_ID.get(int(name))
    if found is None:
        raise ArgumentError(
            f"unknown file type {str(spec)!r}; must be one of {', '.join((*FILE_TYPES, *ALIASES))}"
        )
    return found

"""The types that K and V may have."""

from __future__ import annotations

from numbers import Integral

from ggmlpy.errors import Unsupported
from ggmlpy.graph.types import BY_ID, TYPES, TensorType

# What attention reads and `set_rows` writes on every backend.
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")


def cache_type(name: str, type: str | int | TensorType) -> TensorType:
    """The type of K or V with a name, or with a number in GGUF files. Raises Unsupported."""
    if isinstance(type, TensorType):
        return type
    found = TYPES.get(type) if isinstance(type, str) else None
    if isinstance(type, Integral) and not isinstance(type, bool):
        found = BY_ID.get(int(type))
    if found is None:
        raise Unsupported(f"{name} is {type!r}: must be one of {', '.join(CACHE_TYPES)}")
    return found


def check_cache_type(name: str, type: TensorType, n_embd_head: int) -> None:
    """Raise Unsupported unless K or V of heads of this size may have the type."""
    if str(type) not in CACHE_TYPES:
        raise Unsupported(f"{name} is {type}: K and V may be {', '.join(CACHE_TYPES)}")
    if n_embd_head % type.block_size:
        raise Unsupported(
            f"{name} is {type}, in blocks of {type.block_size}: the head size {n_embd_head}"
            " is not a multiple"
        )

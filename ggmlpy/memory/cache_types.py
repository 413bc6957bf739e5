"""The types that K and V may have."""

from __future__ import annotations

from numbers import Integral

from ggmlpy.errors import Unsupported
from ggmlpy.graph.types import BY_ID, TYPES, TensorType

# What attention reads and `set_rows` writes on every backend.
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")


def cache_type(name: str, wanted: str | int | TensorType) -> TensorType:
    """A type of K or V by its name, or by its number in a GGUF file. Raises Unsupported."""
    if isinstance(wanted, TensorType):
        return wanted
    found = TYPES.get(wanted) if isinstance(wanted, str) else None
    if isinstance(wanted, Integral) and not isinstance(wanted, bool):
        found = BY_ID.get(int(wanted))
    if found is None:
        raise Unsupported(f"{name} is {wanted!r}: must be one of {', '.join(CACHE_TYPES)}")
    return found


def check_cache_type(name: str, type: TensorType, n_embd_head: int) -> None:
    """Raise Unsupported for a type of K or V that a cache of such heads cannot have."""
    if str(type) not in CACHE_TYPES:
        raise Unsupported(f"{name} is {type}: K and V may be {', '.join(CACHE_TYPES)}")
    if n_embd_head % type.block_size:
        raise Unsupported(
            f"{name} is {type}, in blocks of {type.block_size}: the head size {n_embd_head}"
            " is not a multiple"
        )

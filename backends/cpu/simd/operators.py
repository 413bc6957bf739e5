"""What Python's operators mean on vectors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ggmlpy.backends.cpu.simd import arith
from ggmlpy.backends.cpu.simd.core import Intrinsic

OPERATORS: dict[Callable[[Any, Any], Any], Intrinsic] = {
    operator.add: arith.add,
    operator.sub: arith.sub,
    operator.mul: arith.mul,
    operator.truediv: arith.div,
    operator.and_: arith.bit_and,
    operator.or_: arith.bit_or,
    operator.xor: arith.bit_xor,
}

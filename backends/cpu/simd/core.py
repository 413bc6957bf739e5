"""What an intrinsic is: a name that kernels call, a typing rule, and a few lines of LLVM IR.

    @intrinsic(f32x16, i64)
    def load_f32x16(b, ptr):
        \"\"\"16 floats at `ptr`, any alignment.\"\"\"
        return b.load_from(ptr, f32x16)

The first argument is an `Emitter` (llvmlite's IRBuilder and the instruction set), the others are
LLVM values. Inside an emitting function intrinsics call each other the same way, emitter first.
Nothing here imports numba: the types are our own, and `frontend.py` explains them to it when a
kernel is compiled, so declaring kernels costs nothing at start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.isa import ISA

_SCALAR_IR: dict[str, ir.Type] = {
    "i1": ir.IntType(1),
    "i8": ir.IntType(8),
    "i16": ir.IntType(16),
    "i32": ir.IntType(32),
    "i64": ir.IntType(64),
    "f16": ir.HalfType(),
    "f32": ir.FloatType(),
    "f64": ir.DoubleType(),
    "void": ir.VoidType(),
}


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number, in a register. Integers carry no sign: operations do."""

    name: str

    @property
    def ir(self) -> Any:
        return _SCALAR_IR[self.name]


@dataclass(frozen=True, slots=True)
class Vec:
    """`n` lanes of one scalar type; LLVM spreads them over as many registers as the host needs."""

    elem: Scalar
    n: int

    @property
    def name(self) -> str:
        return f"{self.elem.name}x{self.n}"

    @property
    def ir(self) -> Any:
        return ir.VectorType(self.elem.ir, self.n)


@dataclass(frozen=True, slots=True)
class Tile:
    """`n` vectors in one value: the accumulators of a small matrix product; or `n` addresses."""

    elem: Vec | Scalar
    n: int

    @property
    def name(self) -> str:
        return f"tile[{self.n} x {self.elem.name}]"

    @property
    def ir(self) -> Any:
        return ir.ArrayType(self.elem.ir, self.n)


@dataclass(frozen=True, slots=True)
class Const:
    """An integer whose value is known when the kernel is compiled."""

    value: int
    name = "const"


Type = Scalar | Vec | Tile
Infer = Callable[..., tuple[Type, ...] | None]  # argument types -> (result, *parameters)

void, i1, i8, i16, i32, i64, f16, f32, f64 = map(
    Scalar, ("void", "i1", "i8", "i16", "i32", "i64", "f16", "f32", "f64")
)
f32x16, i32x16, i8x16, i8x32, i8x64 = (
    Vec(f32, 16),
    Vec(i32, 16),
    Vec(i8, 16),
    Vec(i8, 32),
    Vec(i8, 64),
)
i16x16, i16x32, f16x16, mask16 = Vec(i16, 16), Vec(i16, 32), Vec(f16, 16), Vec(i1, 16)
f64x16 = Vec(f64, 16)


class Emitter(ir.IRBuilder):  # type: ignore[misc]
    """Writes the code of one intrinsic at the end of `block`, for one instruction set."""

    def __init__(self, block: Any, isa: ISA) -> None:
        super().__init__(block)
        self.isa = isa

    def const(self, like: Any, value: float) -> Any:
        """`value` in every lane of the LLVM type `like`."""
        if isinstance(like, ir.VectorType):
            return ir.Constant(like, [value] * like.count)
        return ir.Constant(like, value)

    def bits(self, like: Any, pattern: int) -> Any:
        """The f32 with this bit pattern in every lane of the float type `like`."""
        return self.bitcast(self.const(int_like(like), pattern), like)

    def pointer(self, address: Any, pointee: Any) -> Any:
        return self.inttoptr(address, pointee.as_pointer())

    def load_from(self, address: Any, type_: Type) -> Any:
        value = self.load(self.pointer(address, type_.ir))
        value.align = 1
        return value

    def store_to(self, address: Any, value: Any) -> None:
        self.store(value, self.pointer(address, value.type)).align = 1

    def splat(self, value: Any, n: int) -> Any:
        """The scalar `value` in `n` lanes."""
        vector = ir.VectorType(value.type, n)
        undefined = ir.Constant(vector, ir.Undefined)
        first = self.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
        return self.shuffle(first, undefined, [0] * n)

    def spread(self, value: Any, like: Any) -> Any:
        """`value`, a Python number or a scalar, in the shape of the LLVM type `like`."""
        if isinstance(value, int | float):
            return self.const(like, value)
        if isinstance(like, ir.VectorType) and not isinstance(value.type, ir.VectorType):
            return self.splat(value, like.count)
        return value

    def shuffle(self, a: Any, c: Any, lanes: list[int]) -> Any:
        """The given lanes of `a` followed by `c`."""
        index = ir.VectorType(ir.IntType(32), len(lanes))
        return self.shuffle_vector(a, c, ir.Constant(index, lanes))

    def concat(self, a: Any, c: Any) -> Any:
        return self.shuffle(a, c, list(range(2 * a.type.count)))

    def lanes(self, a: Any, start: int, n: int) -> Any:
        return self.shuffle(a, a, list(range(start, start + n)))

    def repeat(self, n: Any, body: Callable[[Any], None]) -> None:
        """A loop: `body` writes what is done with i = 0, 1, ..., n - 1, an i64."""
        zero, one = ir.Constant(ir.IntType(64), 0), ir.Constant(ir.IntType(64), 1)
        before, loop, done = self.block, *map(self.append_basic_block, ("loop", "done"))
        self.cbranch(self.icmp_signed("<", zero, n), loop, done)
        self.position_at_end(loop)
        i = self.phi(zero.type)
        i.add_incoming(zero, before)
        body(i)
        following = self.add(i, one)
        i.add_incoming(following, self.block)
        self.cbranch(self.icmp_signed("<", following, n), loop, done)
        self.position_at_end(done)

    def llvm(self, name: str, result: Any, *args: Any) -> Any:
        """Calls LLVM's intrinsic, or an external function, `name`."""
        known = self.module.globals.get(name)
        if known is None:
            known = ir.Function(self.module, ir.FunctionType(result, [a.type for a in args]), name)
        return self.call(known, args)


def int_like(type_: Any) -> Any:
    """i32 in the shape of the LLVM float type `type_`."""
    if isinstance(type_, ir.VectorType):
        return ir.VectorType(ir.IntType(32), type_.count)
    return ir.IntType(32)


def suffix(type_: Any) -> str:
    """How LLVM's overloaded intrinsics spell a type: v16f32, f32, v64i8."""
    if isinstance(type_, ir.VectorType):
        return f"v{type_.count}{suffix(type_.element)}"
    if isinstance(type_, ir.IntType):
        return f"i{type_.width}"
    return {"half": "f16", "float": "f32", "double": "f64"}[str(type_)]


class Intrinsic:
    """A function that kernels may call and that expands to LLVM IR on the spot."""

    def __init__(self, emit: Callable[..., Any], infer: Infer) -> None:
        self.name = emit.__name__
        self.emit = emit
        self.infer = infer
        self.__doc__ = emit.__doc__

    def __call__(self, *args: Any) -> Any:
        """In an emitting function: `intrinsic(emitter, *llvm_values)`."""
        if not args or not isinstance(args[0], Emitter):
            raise TypeError(f"{self.name} runs inside compiled kernels only")
        return self.emit(*args)

    def __repr__(self) -> str:
        return f"<intrinsic {self.name}>"


def intrinsic(result: Type, *params: Type) -> Callable[[Callable[..., Any]], Intrinsic]:
    """Declares an intrinsic of one signature; numbers are converted to it at the call."""

    def infer(*args: Type) -> tuple[Type, ...] | None:
        if len(args) != len(params):
            return None
        for arg, param in zip(args, params, strict=True):
            if isinstance(arg, Vec | Tile) != isinstance(param, Vec | Tile):
                return None
            if isinstance(param, Vec | Tile) and arg != param:
                return None
        return (result, *params)

    return lambda emit: Intrinsic(emit, infer)


def elementwise(
    *elems: Scalar, result: Scalar | None = None, scalars: bool = False
) -> Callable[[Callable[..., Any]], Intrinsic]:
    """Declares an intrinsic on vectors of one type, lane by lane.

    A number among the vectors counts as that number in every lane. `result` is the element type
    of the result if it differs. With `scalars` it also takes numbers alone, as f32.
    """

    def declare(emit: Callable[..., Any]) -> Intrinsic:
        n_params = emit.__code__.co_argcount - 1

        def infer(*args: Type) -> tuple[Type, ...] | None:
            vectors = {arg for arg in args if isinstance(arg, Vec)}
            if len(args) != n_params or len(vectors) > 1:
                return None
            if not vectors:
                return (result or f32, *[f32] * n_params) if scalars else None
            vector = vectors.pop()
            if vector.elem not in elems:
                return None
            out = Vec(result, vector.n) if result else vector
            return (out, *[vector if isinstance(a, Vec) else vector.elem for a in args])

        def emit_splatted(b: Emitter, *args: Any) -> Any:
            values = [a for a in args if not isinstance(a, int | float)]
            like = next(
                (a.type for a in values if isinstance(a.type, ir.VectorType)), values[0].type
            )
            return emit(b, *[b.spread(a, like) for a in args])

        emit_splatted.__name__ = emit.__name__
        emit_splatted.__doc__ = emit.__doc__
        return Intrinsic(emit_splatted, infer)

    return declare


def typed(infer: Infer) -> Callable[[Callable[..., Any]], Intrinsic]:
    """Declares an intrinsic with its own typing rule."""
    return lambda emit: Intrinsic(emit, infer)

"""Python -> LLVM IR: kernels and intrinsics as numba sees them.

numba types and lowers the function and all that it calls; optimisation and machine code are ours
(`codegen.py`), for the instruction set that is asked for and not for the host. Only numba's public
names are used here; the private ones are in `numba_parts.py`. These two modules alone import it,
in compile workers only, one instruction set per process.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import from_dtype, njit, typeof, types
from numba.extending import lower_builtin, models, register_model, type_callable, typeof_impl

from ggmlpy.backends.cpu import numba_parts
from ggmlpy.backends.cpu.isa import ISA
from ggmlpy.backends.cpu.kernel import Entry, Inline
from ggmlpy.backends.cpu.simd import core
from ggmlpy.backends.cpu.simd.operators import OPERATORS
from ggmlpy.errors import KernelError

_OPTIONS = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_SCALARS = {
    core.i1: types.boolean,
    core.i8: types.int8,
    core.i16: types.int16,
    core.i32: types.int32,
    core.i64: types.int64,
    core.f32: types.float32,
    core.f64: types.float64,
    core.void: types.void,
}
_UNSIGNED = {
    types.uint8: core.i8,
    types.uint16: core.i16,
    types.uint32: core.i32,
    types.uint64: core.i64,
}
_FROM_NUMBA = {numba_type: scalar for scalar, numba_type in _SCALARS.items()} | _UNSIGNED
_current_isa: ISA | None = None  # of this process, set by the first compile


class SimdType(types.Type):  # type: ignore[misc]
    """numba's view of a vector or a tile: an opaque LLVM value."""

    def __init__(self, shape: core.Vec | core.Tile) -> None:
        self.shape = shape
        super().__init__(name=shape.name)


@register_model(SimdType)
class SimdModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numba_type: SimdType) -> None:
        super().__init__(manager, numba_type, numba_type.shape.ir)


class IntrinsicType(types.Callable, types.Opaque):  # type: ignore[misc]
    """numba's type of an intrinsic: each is a type of its own."""

    def __init__(self, intrinsic: core.Intrinsic) -> None:
        self.intrinsic = intrinsic
        super().__init__(name=f"intrinsic {intrinsic.name}")

    @property
    def key(self) -> core.Intrinsic:
        return self.intrinsic

    def get_call_type(self, context: Any, args: Sequence[Any], kws: dict[str, Any]) -> Any:
        """The signature of a call. Integers known at compile time count as such where the intrinsic
        asks for one, else as any others."""
        if kws:
            return None
        plain = _signature(self.intrinsic, [types.unliteral(arg) for arg in args])
        return _signature(self.intrinsic, args) if plain is None else plain

    def get_call_signatures(self) -> tuple[list[Any], bool]:
        return [], True

    def get_impl_key(self, sig: Any) -> core.Intrinsic:
        return self.intrinsic


def _to_numba(type_: core.Type) -> Any:
    return _SCALARS[type_] if isinstance(type_, core.Scalar) else SimdType(type_)


def _from_numba(type_: Any) -> core.Type | core.Const | None:
    if isinstance(type_, SimdType):
        return type_.shape
    if isinstance(type_, types.IntegerLiteral):
        return core.Const(type_.literal_value)
    return _FROM_NUMBA.get(type_)


def _signature(intrinsic: core.Intrinsic, args: Sequence[Any]) -> Any:
    """numba's signature of a call with these argument types; None where they do not fit."""
    ours = [_from_numba(arg) for arg in args]
    if None in ours:
        return None
    found = intrinsic.infer(*ours)
    if found is None:
        return None
    result, *params = found
    # A constant stays one: the emitting function reads its value from the type.
    numba_params = [
        arg if isinstance(param, core.Const) else _to_numba(param)
        for arg, param in zip(args, params, strict=True)
    ]
    return _to_numba(result)(*numba_params)


def _lower(intrinsic: core.Intrinsic) -> Callable[..., Any]:
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        assert _current_isa is not None
        values = [
            core.Const(param.literal_value) if isinstance(param, types.IntegerLiteral) else arg
            for param, arg in zip(sig.args, args, strict=True)
        ]
        emitter = core.Emitter(builder.block, _current_isa)
        result = intrinsic.emit(emitter, *values)
        builder.position_at_end(emitter.block)
        return context.get_dummy_value() if sig.return_type == types.void else result

    return lower


_intrinsic_types: dict[core.Intrinsic, IntrinsicType] = {}
_dispatchers: dict[Inline, Any] = {}


@typeof_impl.register(core.Intrinsic)  # type: ignore[untyped-decorator]
def _type_of_intrinsic(intrinsic: core.Intrinsic, context: Any) -> IntrinsicType:
    if intrinsic not in _intrinsic_types:
        lower_builtin(intrinsic, types.VarArg(types.Any))(_lower(intrinsic))
        _intrinsic_types[intrinsic] = IntrinsicType(intrinsic)
    return _intrinsic_types[intrinsic]


@typeof_impl.register(Inline)  # type: ignore[untyped-decorator]
def _type_of_inline(helper: Inline, context: Any) -> Any:
    assert _current_isa is not None
    helper = helper.on(_current_isa)
    if helper not in _dispatchers:
        _dispatchers[helper] = njit(**_OPTIONS)(helper.function)  # the type refers to it weakly
    return typeof(_dispatchers[helper])


def _declare_operator(operator: Callable[[Any, Any], Any], meaning: core.Intrinsic) -> None:
    @type_callable(operator)  # type: ignore[untyped-decorator]
    def type_operator(context: Any) -> Callable[[Any, Any], Any]:
        return lambda a, b: _signature(meaning, (a, b))

    for params in (
        (SimdType, SimdType),
        (SimdType, types.Number),
        (types.Number, SimdType),
    ):
        lower_builtin(operator, *params)(_lower(meaning))


for _operator, _meaning in OPERATORS.items():
    _declare_operator(_operator, _meaning)


def _check_body(entry: Entry) -> None:
    if any(i.opname == "RAISE_VARARGS" for i in dis.get_instructions(entry.function)):
        raise KernelError(f"{entry.module}.{entry.name} raises; a kernel must report() instead")


def lower_to_ir(entry: Entry, symbol: str, isa: ISA) -> Any:
    """The LLVM module (not optimised) that defines `symbol` as a C function doing `entry`.

    Raises KernelError where numba cannot compile the function.
    """
    global _current_isa
    if _current_isa not in (None, isa):
        raise RuntimeError("one instruction set per process: numba keeps what it has lowered")
    _current_isa = isa
    _check_body(entry)
    params = [_to_numba(param) for param in entry.params]
    c_params = [param.ir for param in entry.params]
    if entry.record is not None:
        params[0], c_params[0] = from_dtype(entry.record), ir.IntType(8).as_pointer()
    c_type = ir.FunctionType(entry.result.ir, c_params)
    result = _to_numba(entry.result)
    return numba_parts.lower(entry.function, tuple(params), result, symbol, c_type)

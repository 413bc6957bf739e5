"""Python -> LLVM IR: the only module that imports numba, which is used as a front end alone.

numba types and lowers the function and all that it calls; optimisation and machine code are ours
(`codegen.py`), for the instruction set that is asked for and not for the host. Imported in compile
workers only, one instruction set per process.
"""

from __future__ import annotations

import dis
import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import codegen, compiler, datamodel, imputils, typing
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import register_model

from ggmlpy.backends.cpu.isa import ISA
from ggmlpy.backends.cpu.kernel import Entry, Inline
from ggmlpy.backends.cpu.simd import arith, core
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
class SimdModel(datamodel.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numba_type: SimdType) -> None:
        super().__init__(manager, numba_type, numba_type.shape.ir)


def _to_numba(type_: core.Type) -> Any:
    return _SCALARS[type_] if isinstance(type_, core.Scalar) else SimdType(type_)


def _from_numba(type_: Any) -> core.Type | core.Const | None:
    if isinstance(type_, SimdType):
        return type_.shape
    if isinstance(type_, types.IntegerLiteral):
        return core.Const(type_.literal_value)
    return _FROM_NUMBA.get(type_)


def _signature(intrinsic: core.Intrinsic, args: tuple[Any, ...]) -> Any:
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
    return typing.signature(_to_numba(result), *numba_params)


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


def _template(key: Any, intrinsic: core.Intrinsic) -> type[AbstractTemplate]:
    """Tells numba how `key`, an intrinsic or an operator, is typed on vectors."""

    class Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
            return None if kws else _signature(intrinsic, args)

    Template.key = key
    Template.__name__ = f"Template_{intrinsic.name}"
    return Template


_intrinsic_types: dict[core.Intrinsic, Any] = {}
_dispatchers: dict[Inline, Any] = {}


def intrinsic_type(intrinsic: core.Intrinsic) -> Any:
    """numba's type of an intrinsic as a callable."""
    if intrinsic not in _intrinsic_types:
        template = _template(intrinsic, intrinsic)
        imputils.lower_builtin(intrinsic, types.VarArg(types.Any))(_lower(intrinsic))
        _intrinsic_types[intrinsic] = types.Function(template)
    return _intrinsic_types[intrinsic]


def inline_type(helper: Inline) -> Any:
    """numba's type of an `@inline` function."""
    assert _current_isa is not None
    helper = helper.on(_current_isa)
    if helper not in _dispatchers:
        _dispatchers[helper] = njit(**_OPTIONS)(helper.function)  # the type refers to it weakly
    return types.Dispatcher(_dispatchers[helper])


_OPERATORS = {
    operator.add: arith.add,
    operator.sub: arith.sub,
    operator.mul: arith.mul,
    operator.truediv: arith.div,
    operator.and_: arith.bit_and,
    operator.or_: arith.bit_or,
    operator.xor: arith.bit_xor,
}
for _operator, _meaning in _OPERATORS.items():
    infer_global(_operator)(_template(_operator, _meaning))
    for _params in (
        (SimdType, SimdType),
        (SimdType, types.Number),
        (types.Number, SimdType),
    ):
        imputils.lower_builtin(_operator, *_params)(_lower(_meaning))


class _Library(codegen.CPUCodeLibrary):  # type: ignore[misc]
    """Links what numba lowered, and leaves all optimisation to us."""

    def _optimize_functions(self, ll_module: Any) -> None:
        pass

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_specific(self) -> None:
        pass

    def get_pointer_to_function(self, name: str) -> int:
        return 0  # nothing runs in this process


class _Codegen(codegen.CPUCodegen):  # type: ignore[misc]
    _library_class = _Library

    def _customize_tm_options(self, options: dict[str, Any]) -> None:
        pass

    def _customize_tm_features(self) -> str:
        return ""

    def _add_module(self, module: Any) -> None:
        pass

    def set_env(self, name: str, env: Any) -> None:
        pass


def _flags() -> compiler.Flags:
    flags = compiler.Flags()
    flags.no_compile = True
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    flags.nrt = False
    return flags


def _check_body(entry: Entry) -> None:
    if any(i.opname == "RAISE_VARARGS" for i in dis.get_instructions(entry.function)):
        raise KernelError(f"{entry.module}.{entry.name} raises; a kernel must report() instead")


@cache
def _contexts() -> tuple[Any, Any]:
    """numba's typing and target contexts, the latter made to lower with our code generator.

    This takes over numba's only CPU target for the rest of the process, so that functions called
    by kernels go the same way; it is why kernels are compiled in processes of their own.
    """
    target_context = cpu_target.target_context
    target_context._internal_codegen = _Codegen("ggmlpy")
    return cpu_target.typing_context, target_context


def _add_c_entry(entry: Entry, symbol: str, compiled: Any, context: Any) -> None:
    """Adds `result symbol(params...)` around the function in numba's calling convention."""
    library = compiled.library
    module = library.create_ir_module(f"entry.{symbol}")
    params = [param.ir for param in entry.params]
    if entry.record is not None:
        params[0] = ir.IntType(8).as_pointer()
    wrapper = ir.Function(module, ir.FunctionType(entry.result.ir, params), symbol)
    builder = ir.IRBuilder(wrapper.append_basic_block())
    callee = ir.Function(
        module,
        context.call_conv.get_function_type(*_fn_types(compiled)),
        compiled.fndesc.llvm_func_name,
    )
    args = list(wrapper.args)
    if entry.record is not None:
        # The record is written before the run only, so its fields may stay in registers.
        wrapper.args[0].add_attribute("noalias")
        args[0] = builder.bitcast(args[0], context.get_value_type(compiled.signature.args[0]))
    _, result = context.call_conv.call_function(
        builder, callee, compiled.signature.return_type, compiled.signature.args, args
    )
    if entry.result == core.void:
        builder.ret_void()
    else:
        builder.ret(result)
    library.add_ir_module(module)


def _fn_types(compiled: Any) -> tuple[Any, Any]:
    return compiled.signature.return_type, compiled.signature.args


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
    if entry.record is not None:
        params[0] = _record_type(entry.record)
    with global_compiler_lock:
        typing_context, target_context = _contexts()
        compiled = compiler.compile_extra(
            typing_context,
            target_context,
            entry.function,
            tuple(params),
            _to_numba(entry.result),
            _flags(),
            {},
        )
        _add_c_entry(entry, symbol, compiled, target_context)
        compiled.library.finalize()
        return compiled.library._final_module


def _record_type(dtype: np.dtype) -> Any:
    from numba.np.numpy_support import from_dtype

    return from_dtype(dtype)

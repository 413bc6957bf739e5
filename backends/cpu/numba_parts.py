"""What is used of numba that it does not offer publicly: all of it is here (numba 0.67 and 0.68).

numba compiles for the machine that it runs on and keeps what it has compiled in this process. Here
it is a front end alone: it types a function, with all that this calls, and lowers it to LLVM IR;
optimisation and machine code, for a given instruction set, are `codegen.py`'s. There is no public
way to stop it there, so these private parts are used:

    core.compiler            compile_extra, Flags     one function for given types, no dispatcher
    core.registry            cpu_target               numba's one set of contexts for CPUs
    core.codegen             CPUCodegen, CPUCodeLibrary, and the target context's _internal_codegen:
                             replaced by a generator that links and neither optimises nor emits
    core.compiler_lock       global_compiler_lock     which compile_extra wants held
    CompileResult.library    create_ir_module, add_ir_module, finalize, _final_module: the IR
    CompileResult.fndesc     llvm_func_name           what numba calls a function in it
    BaseContext              call_conv, get_value_type: how such a function is called

The rest of numba is used through `numba`, `numba.types` and `numba.extending` (`frontend.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import codegen, compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target


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


@cache
def _contexts() -> tuple[Any, Any]:
    """numba's typing and target contexts, the latter made to lower with our code generator.

    This takes over numba's only CPU target for the rest of the process, so that functions called
    by kernels go the same way; it is why kernels are compiled in processes of their own.
    """
    target_context = cpu_target.target_context
    target_context._internal_codegen = _Codegen("ggmlpy")
    return cpu_target.typing_context, target_context


def _flags() -> compiler.Flags:
    flags = compiler.Flags()
    flags.no_compile = True
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    flags.nrt = False
    return flags


def lower(
    function: Callable[..., Any],
    params: tuple[Any, ...],
    result: Any,
    symbol: str,
    c_type: ir.FunctionType,
) -> Any:
    """The LLVM module, not optimised, of a function on numba's types `params`, with all that it
    calls. In it `symbol` is a C function of type `c_type` that calls the function.

    Where the first parameter is a record, in C it is that record's address.
    """
    with global_compiler_lock:
        typing_context, target_context = _contexts()
        compiled = compiler.compile_extra(
            typing_context, target_context, function, params, result, _flags(), {}
        )
        _add_c_function(compiled, target_context, symbol, c_type)
        compiled.library.finalize()
        return compiled.library._final_module


def _add_c_function(compiled: Any, context: Any, symbol: str, c_type: ir.FunctionType) -> None:
    """Adds `symbol` around the function, which has numba's calling convention."""
    library, signature = compiled.library, compiled.signature
    module = library.create_ir_module(f"entry.{symbol}")
    wrapper = ir.Function(module, c_type, symbol)
    builder = ir.IRBuilder(wrapper.append_basic_block())
    convention = context.call_conv
    callee = ir.Function(
        module,
        convention.get_function_type(signature.return_type, signature.args),
        compiled.fndesc.llvm_func_name,
    )
    args = list(wrapper.args)
    if signature.args and isinstance(signature.args[0], types.Record):
        # The record is written before the run only, so its fields may stay in registers.
        wrapper.args[0].add_attribute("noalias")
        args[0] = builder.bitcast(args[0], context.get_value_type(signature.args[0]))
    _, result = convention.call_function(
        builder, callee, signature.return_type, signature.args, args
    )
    if isinstance(c_type.return_type, ir.VoidType):
        builder.ret_void()
    else:
        builder.ret(result)
    library.add_ir_module(module)

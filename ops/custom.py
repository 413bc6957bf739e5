"""Ops that call a Python function of the caller.

    def double(dst, a, ith, nth, userdata):
        dst[...] = 2 * a

    y = ops.map_custom1(x, double, 1, None)

The function gets arrays in numpy order, [ne3, ne2, ne1, ne0]: `dst` is written, sources may only be
read, bf16 and quantised ones are f32. It is called with ith from 0 to nth - 1, one call after
another, and writes its share of `dst` in each; what none writes is 0. It returns None or `dst`, and
must depend on nothing but its arguments. The reference backend runs these ops, and other backends
copy to it and back: kernels of the CPU run on threads that do not hold Python's lock.

Two ops are equal if they have the same function and the same userdata, not only equal ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmlpy.common.arguments import checked, kind_of
from ggmlpy.errors import ArgumentError, CallbackError
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Dims, Spec, as_ne, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import TensorType, type_of

N_TASKS_MAX = -1  # ggml's name for as many tasks as there are threads; here it is one
_MOST_TASKS = 512  # as many as ggml has threads at most
Function = Callable[..., Any]


class Custom(Op):
    """The base: `fun(dst, *sources, ith, n_tasks, userdata)`, for every ith below n_tasks.

    Raises ShapeError for a quantised result and unless n_tasks is 1 to 512 (or N_TASKS_MAX),
    ArgumentError unless fun is a function, CallbackError when run if the function raises, as it
    does where it writes to a source, or returns something other than None and dst.
    """

    __slots__ = ()

    fun: Function
    n_tasks: int
    userdata: Any

    def check(self, spec: Spec) -> None:
        if not callable(self.fun):
            raise ArgumentError(f"{self.name}: fun is {kind_of(self.fun)}: it must be a function")
        require(
            1 <= self.n_tasks <= _MOST_TASKS or self.n_tasks == N_TASKS_MAX,
            f"n_tasks is {self.n_tasks}: it must be 1 to {_MOST_TASKS}, or {N_TASKS_MAX}",
        )
        require(not spec.type.is_quantized, f"the result is {spec.type}: it must not be quantised")

    def call(self, dst: Array, sources: Sequence[Array]) -> Array:
        n_tasks = max(1, self.n_tasks)
        for source in sources:
            source.flags.writeable = False
        for ith in range(n_tasks):
            try:
                returned = self.fun(dst, *sources, ith, n_tasks, self.userdata)
            except Exception as error:
                raise CallbackError(f"{self._named}: {type(error).__name__}: {error}") from error
            if returned is not None and returned is not dst:
                raise CallbackError(
                    f"{self._named}: it returned {kind_of(returned)}: it must write to dst"
                )
        return dst

    @property
    def _named(self) -> str:
        return getattr(self.fun, "__qualname__", repr(self.fun))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[object, ...]:
        """What tells one op from another. A userdata may have no hash, and change while equal."""
        given = {"fun": id(self.fun), "userdata": id(self.userdata)}
        return type(self), *(self.params() | given).values()


class MapCustom(Custom):
    """The base of ops whose result has the shape and type of source 0."""

    __slots__ = ()

    def like(self, a: Spec) -> Spec:
        self.check(a)
        return Spec(a.ne, a.type)

    def reference(self, a: Array, *others: Array) -> Array:
        return self.call(np.zeros_like(a), (a, *others))


@op("map_custom1")
@dataclass(frozen=True, slots=True, eq=False)
class MapCustom1(MapCustom):
    """A function of one tensor: a [...]  ->  y like a; see Custom."""

    fun: Function
    n_tasks: int
    userdata: Any

    def infer(self, a: Spec) -> Spec:
        return self.like(a)


@op("map_custom2")
@dataclass(frozen=True, slots=True, eq=False)
class MapCustom2(MapCustom):
    """A function of two tensors: a, b [...]  ->  y like a; see Custom."""

    fun: Function
    n_tasks: int
    userdata: Any

    def infer(self, a: Spec, b: Spec) -> Spec:
        return self.like(a)


@op("map_custom3")
@dataclass(frozen=True, slots=True, eq=False)
class MapCustom3(MapCustom):
    """A function of three tensors: a, b, c [...]  ->  y like a; see Custom."""

    fun: Function
    n_tasks: int
    userdata: Any

    def infer(self, a: Spec, b: Spec, c: Spec) -> Spec:
        return self.like(a)


@op("custom")
@dataclass(frozen=True, slots=True, eq=False)
class CustomOp(Custom):
    """A function of any tensors, with a result of any shape and type that is not quantised.

    sources [...]  ->  y [ne] of `type`; bf16 is f32 for the function. See Custom.
    """

    type: TensorType
    ne: Dims
    fun: Function
    n_tasks: int
    userdata: Any

    def source_names(self, n_srcs: int) -> tuple[str, ...]:
        return tuple(f"args[{i}]" for i in range(n_srcs))

    def infer(self, *sources: Spec) -> Spec:
        spec = Spec(self.ne, self.type)
        self.check(spec)
        return spec

    def reference(self, *sources: Array) -> Array:
        dtype = np.dtype(np.float32) if self.type.dtype is None else self.type.dtype
        return self.call(np.zeros(self.ne[::-1], dtype), sources)


@checked
def map_custom1(a: Tensor, fun: Function, n_tasks: int, userdata: Any) -> Tensor:
    """`ggml_map_custom1`; see Custom."""
    return MapCustom1(fun, n_tasks, userdata).node(a)


@checked
def map_custom2(a: Tensor, b: Tensor, fun: Function, n_tasks: int, userdata: Any) -> Tensor:
    """`ggml_map_custom2`; see Custom."""
    return MapCustom2(fun, n_tasks, userdata).node(a, b)


@checked
def map_custom3(
    a: Tensor, b: Tensor, c: Tensor, fun: Function, n_tasks: int, userdata: Any
) -> Tensor:
    """`ggml_map_custom3`; see Custom."""
    return MapCustom3(fun, n_tasks, userdata).node(a, b, c)


@checked
def custom_4d(
    type: str | TensorType,
    ne0: int,
    ne1: int,
    ne2: int,
    ne3: int,
    args: Sequence[Tensor],
    fun: Function,
    n_tasks: int,
    userdata: Any,
) -> Tensor:
    """`ggml_custom_4d`: args are the sources; see CustomOp."""
    for i, source in enumerate(args):
        if not isinstance(source, Tensor):
            raise ArgumentError(
                f"{CustomOp.name}: args[{i}] is {kind_of(source)}: it must be a tensor"
            )
    made = CustomOp(type_of(type), as_ne((ne0, ne1, ne2, ne3)), fun, n_tasks, userdata)
    return made.node(*args)

"""The base of every op: its meaning, its shape rule, and how it becomes a node."""

from __future__ import annotations

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.scopes import in_scope, qualified
from ggmlpy.errors import ShapeError
from ggmlpy.graph.count import Counts, has_counts, value_of
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Tensor

Array = NDArray[Any]

OPS: dict[str, type[Op]] = {}  # filled by @op, when ggmlpy.ops is imported


class Op(ABC):
    """One operation with its parameters as typed fields (a frozen dataclass).

    The docstring is the specification; `infer` is the shape rule, `reference` the values.
    """

    __slots__ = ()

    name: ClassVar[str] = ""
    view_of: ClassVar[int | None] = None  # the source whose memory the result shares
    computes: ClassVar[bool] = True  # False: a view, nothing runs
    in_place: ClassVar[bool] = False  # row i reads only row i of source 0, and may overwrite it
    suffix: ClassVar[str] = ""  # " (view)": names the result of a view after its source

    @abstractmethod
    def infer(self, *specs: Any, **unused: Any) -> Spec:
        """The result's shape, type and strides. Raises ShapeError where the sources do not fit."""

    @abstractmethod
    def reference(self, *arrays: Any, **unused: Any) -> Array:
        """The result `[ne3, ne2, ne1, ne0]` from the sources in the same order.

        Sources have their numpy type, bf16 and quantised ones f32. References compute in float64
        where that is more accurate. An op that writes into a source returns its new values.
        """

    def written_rows(self, *arrays: Any, **unused: Any) -> NDArray[np.bool_] | None:
        """Which rows `[ne3, ne2, ne1]` of the result `reference` changes; None for all."""
        return None

    def view_offset(self, *specs: Any, **unused: Any) -> int:
        """Byte offset of the result in the source that it shares memory with."""
        return 0

    def node(self, *srcs: Tensor) -> Tensor:
        """A node with this op and these sources. Raises ShapeError, which names op and shapes."""
        specs = [s.spec for s in srcs]
        try:
            spec = self.infer(*specs)
            offset = self.view_offset(*specs)
        except ShapeError as error:
            shapes = f"{self._shapes(srcs)}: " if srcs else ""
            raise ShapeError(f"{qualified(self.name)}: {shapes}{error}") from None
        name = qualified(self.name) if in_scope() else ""
        view_src = None
        if self.view_of is not None:
            shared = srcs[self.view_of]
            view_src = shared.root
            offset += shared.view_offs
            if self.suffix and srcs[0].name:
                name = srcs[0].name + self.suffix
        return Tensor(spec, op=self, src=srcs, name=name, view_src=view_src, view_offs=offset)

    def _shapes(self, srcs: tuple[Tensor, ...]) -> str:
        """`x "blk.3.ffn_up" is f32 [4096, 7], …`, with the names that the shape rule uses."""
        names = self.source_names(len(srcs))
        return ", ".join(
            f"{name} {tensor.name + ' ' if tensor.name else ''}is {tensor.spec}"
            for name, tensor in zip(names, srcs, strict=True)
        )

    def source_names(self, n_srcs: int) -> tuple[str, ...]:
        """The names of the sources in the shape rule, by which kernels bind their operands.

        An op with several optional sources overrides this to return those that it has.
        """
        return _parameters(type(self).infer)[1 : n_srcs + 1]  # the first one is self

    def params(self) -> dict[str, Any]:
        """The parameters by name."""
        if not dataclasses.is_dataclass(self):
            return {}
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def at(self, counts: Counts) -> Op:
        """This op in a run with these values: its parameters `ne` may have counts."""
        changed = {
            name: tuple(value_of(n, counts) for n in value)
            for name, value in self.params().items()
            if isinstance(value, tuple) and has_counts(value)
        }
        return dataclasses.replace(self, **changed) if changed else self  # type: ignore[type-var]

    def __str__(self) -> str:
        params = ", ".join(f"{k}={_short(v)}" for k, v in self.params().items())
        return f"{self.name}({params})" if params else self.name


@cache
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


OpType = TypeVar("OpType", bound=type[Op])


def op(name: str) -> Callable[[OpType], OpType]:
    """Class decorator: register an Op under ggml's name for it."""

    def register(cls: OpType) -> OpType:
        assert name not in OPS, f"op {name} is defined twice"
        cls.name = name
        OPS[name] = cls
        return cls

    return register

"""How a CPU kernel is declared, and the table of all of them.

    ARGS = np.dtype([("y", TENSOR), ("x", TENSOR), ("eps", "f4")], align=True)

    @kernel("rms_norm", ("f32",), args=ARGS, requires=requires)
    def rms_norm_f32(p: Record, ith: int, nth: int) -> None:
        for row in range(p.x.ne1 * ith // nth, p.x.ne1 * (ith + 1) // nth): ...

`p` is the step's record: fields of dtype TENSOR are the result `y`, then the operands, by name;
other fields are the op's parameters by name; a field `scratch` is the address of scratch memory.
Every one of `nth` threads calls the kernel with its own `ith`. A kernel works on addresses with the
vocabulary of `simd`, allocates nothing, raises nothing (`report` says what went wrong), and calls
only intrinsics and functions marked `@inline`. Declaring one imports and compiles nothing: `Jit`
does that when the kernel is loaded.

The kernel of a fused step is filed under the step's op and its operands' types, in their order
(ggmlpy/sched/fusion.py); what it is asked and told of a node, it is of the step's `node`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from ggmlpy.backends.cpu.isa import ISA, known
from ggmlpy.backends.cpu.simd.atomic import compare_exchange_i64
from ggmlpy.backends.cpu.simd.core import Type, i64, void
from ggmlpy.backends.cpu.simd.memory import store_i64

RECORD_BYTES = 960

# One operand: address of the first element, elements and byte strides per dimension.
TENSOR = np.dtype(
    [(name, "i8") for name in ("ptr", "ne0", "ne1", "ne2", "ne3", "nb0", "nb1", "nb2", "nb3")]
)
# What stands before a kernel's own fields: addresses of its code and of the plan's status words,
# and the node's index.
HEADER = np.dtype([("code", "i8"), ("status", "i8"), ("node", "i8")])

# Types of values inside kernels: a type checker cannot follow a record's fields.
Record = Any
Int = Any
Requires = Callable[[Any], bool]  # node -> whether this kernel can run it
ScratchBytes = Callable[[Any, int], int]  # node, threads -> bytes of scratch memory
# node, plan builder -> values of fields that are neither operands nor parameters (builder.py)
Bind = Callable[[Any, Any], Mapping[str, float]]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Entry:
    """A Python function that becomes one C function: `result name(params...)`.

    Where `record` is set the first parameter is the address of such a record. Importing `home`
    declares it; "" is the function's module.
    """

    name: str
    function: Callable[..., Any]
    params: tuple[Type, ...]
    result: Type = void
    record: np.dtype | None = None
    home: str = ""

    @property
    def module(self) -> str:
        return self.home or self.function.__module__

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.module}.{self.name}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Kernel(Entry):
    """The implementation of an op for some types and layouts, on some instruction sets."""

    op: str = ""
    types: tuple[str, ...] = ()
    requires: Requires = lambda node: True
    needs: str = "generic"
    scratch_bytes: ScratchBytes | None = None
    bind: Bind | None = None

    @property
    def record_dtype(self) -> np.dtype:
        assert self.record is not None
        return self.record


_ENTRIES: dict[tuple[str, str], Entry] = {}  # by (module, name): what a compile worker looks up
_KERNELS: dict[tuple[str, tuple[str, ...]], list[Kernel]] = {}
_candidates: dict[tuple[str, tuple[str, ...], str], Sequence[Kernel]] = {}  # found before


def entry_of(module: str, name: str) -> Entry:
    """The declared entry; its module must have been imported."""
    return _ENTRIES[module, name]


def candidates(op: str, types: tuple[str, ...], isa: ISA) -> Sequence[Kernel]:
    """The kernels for `op` on `types` that `isa` can run: best instruction set first, then in
    order of declaration."""
    found = _candidates.get((op, types, isa.name))
    if found is None:
        runnable = [k for k in _KERNELS.get((op, types), ()) if isa.includes(k.needs)]
        levels = [level.name for level in known()]  # best first; the sort keeps declaration order
        found = sorted(runnable, key=lambda k: levels.index(k.needs))
        _candidates[op, types, isa.name] = found
    return found


def all_entries() -> list[Entry]:
    """Every declared kernel and other compiled function, in order of declaration."""
    return list(_ENTRIES.values())


def _file(entry: Entry) -> None:
    key = entry.module, entry.name
    if key in _ENTRIES:
        raise TypeError(f"{entry.module} declares {entry.name} twice: pass name=")
    _ENTRIES[key] = entry


def record_dtype(args: np.dtype) -> np.dtype:
    """The whole record of a kernel whose own fields are `args`."""
    fields = [(name, HEADER[name]) for name in HEADER.names or ()]
    fields += [(name, args[name]) for name in args.names or ()]
    whole = np.dtype(fields, align=True)
    if whole.itemsize > RECORD_BYTES:
        raise TypeError(f"a record is {RECORD_BYTES} bytes, these fields need {whole.itemsize}")
    return whole


def kernel(
    op: str,
    types: tuple[str, ...],
    *,
    args: np.dtype,
    requires: Requires = lambda node: True,
    needs: str = "generic",
    scratch_bytes: ScratchBytes | None = None,
    bind: Bind | None = None,
    name: str | None = None,
    also: Iterable[tuple[str, tuple[str, ...]]] = (),
) -> Callable[[Callable[..., None]], Kernel]:
    """Files the decorated function as the kernel for (op, types) on instruction set `needs`.

    `name` must differ between kernels that a factory makes from one function; it defaults to the
    function's name. `also` lists further (op, types) that the same code serves, told apart by
    fields of its record.
    """

    def declare(function: Callable[..., None]) -> Kernel:
        made = Kernel(
            name or function.__name__,
            function,
            (i64, i64, i64),
            record=record_dtype(args),
            op=op,
            types=types,
            requires=requires,
            needs=needs,
            scratch_bytes=scratch_bytes,
            bind=bind,
        )
        _file(made)
        for served in ((op, types), *also):
            _KERNELS.setdefault(served, []).append(made)
            _candidates.clear()
        return made

    return declare


def entry(
    result: Type,
    *params: Type,
    record: np.dtype | None = None,
    name: str | None = None,
    module: str = "",
) -> Callable[[Callable[..., Any]], Entry]:
    """Declares a compiled function that is not a kernel, such as the plan runner.

    With `record` its first parameter, an i64, is the address of one. `module` is the module that
    declares it, where that is another than the function's.
    """

    def declare(function: Callable[..., Any]) -> Entry:
        made = Entry(name or function.__name__, function, params, result, record, module)
        _file(made)
        return made

    return declare


class Inline:
    """A function for use inside kernels, compiled into each of them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__

    def __call__(self, *args: Any) -> Any:
        raise TypeError(f"{self.__name__} runs inside compiled kernels only")

    def on(self, isa: ISA) -> Inline:
        """What is compiled for this instruction set."""
        return self


class Choice(Inline):
    """A function that kernels call, in two versions: one for instruction sets that have any of
    `features`, another for the rest. Only the selected one is compiled."""

    def __init__(self, features: Set[str], there: Inline, elsewhere: Inline) -> None:
        super().__init__(there.function)
        self._features, self._there, self._elsewhere = features, there, elsewhere

    def on(self, isa: ISA) -> Inline:
        return (self._there if self._features & isa.has else self._elsewhere).on(isa)


def inline(function: Callable[..., Any]) -> Inline:
    """Marks a function that kernels call. It sees the vocabulary of `simd` as kernels do."""
    return Inline(function)


def constant(n: int) -> Inline:
    """The function of no arguments that returns n, where which number it is depends on the
    instruction set (Choice)."""

    @inline
    def number() -> int:
        return n

    return number


UNREADABLE = -(1 << 62)  # what is reported where bytes of a file could not be read


@inline
def report(p: Record, value: int) -> None:
    """Reports that this node failed, with the offending value; the first report of a run is kept.

    The run continues: the kernel must leave memory valid and skip what it cannot do.
    """
    if compare_exchange_i64(p.status, 0, p.node + 1) == 0:
        store_i64(p.status + 8, value)

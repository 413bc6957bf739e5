"""Steps to the launches of a plan: arguments filled in, counts listed, accesses named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Places
from ggmlpy.backends.cuda.args import COUNT, SPAN, TENSOR
from ggmlpy.backends.cuda.driver import Access, Allocation, DeviceInfo, Driver, Grid
from ggmlpy.backends.cuda.kernel import Kernel, Launch, Layout, Scratch, Work
from ggmlpy.backends.cuda.source import Form
from ggmlpy.backends.step import Step
from ggmlpy.graph.buffer import Place
from ggmlpy.graph.count import Count, Counts, same_counts
from ggmlpy.graph.tensor import Tensor


class ScratchPool:
    """Temporary device memory that all plans of a backend share, since its stream runs one launch
    at a time. Memory that grows is replaced: earlier plans keep what they were made with."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._held: dict[str, Allocation] = {}

    def take(self, what: str, n_bytes: int) -> Allocation:
        held = self._held.get(what)
        if held is None or held.n_bytes < n_bytes:
            held = self._held[what] = self._driver.allocate(n_bytes)
        return held


class CountTable:
    """The forms of a plan's counts. Kernels find their values by index in device memory."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}  # by text: a graph's symbols have one name
        self._forms: list[Count] = []

    def __len__(self) -> int:
        return len(self._forms)

    def entry(self, n: int) -> tuple[int, int]:
        """A number as COUNT: its bound and the index of its form, or -1."""
        if not isinstance(n, Count):
            return int(n), -1
        index = self._index.setdefault(str(n), len(self._forms))
        if index == len(self._forms):
            self._forms.append(n)
        return int(n), index

    def values(self, counts: Counts | None) -> list[int]:
        """The values of all forms; None: the bounds."""
        return [int(form) if counts is None else form.at(counts) for form in self._forms]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launch with its arguments."""

    form: Form
    node: Tensor
    grid: Grid
    threads: int
    shared_bytes: int
    args: NDArray[Any]
    accesses: tuple[Access, ...]


@dataclass(slots=True)
class _Derived:
    """What was computed from operands, and is valid until bytes of theirs are overwritten."""

    sources: tuple[tuple[Tensor, Place], ...]
    scratch: Scratch

    def holds(self, sources: Sequence[tuple[Tensor, Place]], n_bytes: int) -> bool:
        if self.scratch.n_bytes != n_bytes or len(self.sources) != len(sources):
            return False
        return all(
            at == place and x.spec == old.spec and same_counts(old.ne, x.ne)
            for (old, at), (x, place) in zip(self.sources, sources, strict=True)
        )


class PlanBuilder:
    """Collects the launches of steps. `keep` is the memory that their arguments point into."""

    def __init__(self, driver: Driver, pool: ScratchPool, places: Places) -> None:
        self.launches: list[Prepared] = []
        self.counts = CountTable()
        self.keep: dict[str, Allocation] = {}
        self._driver = driver
        self._pool = pool
        self._places = places
        self._derived: dict[str, _Derived] = {}

    def add(self, kernel: Kernel, step: Step) -> None:
        """Append the launches of a kernel for a step."""
        work = _Work(self, step, self._driver.info)
        for launch in kernel.launcher(work):
            assert launch.form in kernel.forms, f"{kernel} does not list {launch.form}"
            self._append(launch, step)
        for result in step.results.values():
            self._forget_overwritten(result)

    # --- for launchers ---

    def address(self, tensor: Tensor) -> int:
        return self._places[tensor].address

    def scratch(self, what: str, n_bytes: int) -> Scratch:
        taken = self._pool.take(what, n_bytes)
        self.keep[f"{what} {taken.address}"] = taken
        return Scratch(what, taken.address, n_bytes)

    def derived(self, kind: str, operands: Sequence[Tensor], n_bytes: int) -> tuple[Scratch, bool]:
        sources = tuple((x, self._places[x]) for x in operands)
        last = self._derived.get(kind)
        if last is not None and last.holds(sources, n_bytes):
            return last.scratch, False
        scratch = self.scratch(kind, n_bytes)
        self._derived[kind] = _Derived(sources, scratch)
        return scratch, True

    def _forget_overwritten(self, result: Tensor) -> None:
        written = self._places[result]
        end = written.offset + result.spec.n_bytes
        for kind, held in list(self._derived.items()):
            for x, place in held.sources:
                begin = place.offset
                apart = end <= begin or begin + x.spec.n_bytes <= written.offset
                if written.buffer is place.buffer and not apart:
                    self._derived.pop(kind, None)

    # --- arguments ---

    def _append(self, launch: Launch, step: Step) -> None:
        assert step.node.op is not None
        params = {**step.node.op.params(), **step.params}
        tensors: dict[str, Tensor] = {**step.operands, **step.results}
        results = set(step.results.values())
        args = np.zeros((), launch.args)
        accesses: list[Access] = []
        for name in launch.args.names or ():
            value = launch.values.get(name, tensors.get(name, params.get(name)))
            dtype = launch.args[name]
            if isinstance(value, (Tensor, Layout)):
                assert dtype == TENSOR, f"{launch.form}: {name} is a tensor, the field is {dtype}"
                tensor = value.tensor if isinstance(value, Layout) else value
                at = self.address(tensor)
                args[name] = self._tensor(at, value)
                accesses.append(Access(name, at, tensor.spec.n_bytes, tensor in results))
            elif isinstance(value, Scratch):
                assert dtype == SPAN, f"{launch.form}: {name} is scratch, the field is {dtype}"
                args[name] = (value.address, value.n_bytes)
                accesses.append(Access(value.what, value.address, value.n_bytes, True))
            elif value is None:  # an optional operand that is absent: address 0
                assert dtype in (TENSOR, SPAN), f"{launch.form}: nothing fills {name}"
                if dtype == TENSOR:
                    args[name]["ne"]["form"] = -1
            elif dtype == COUNT:
                args[name] = self.counts.entry(value)
            else:
                assert not _has_count(value), f"{launch.form}: {name} is a count: declare COUNT"
                args[name] = value
        made = Prepared(
            launch.form,
            step.node,
            launch.grid,
            launch.threads,
            launch.shared_bytes,
            args,
            tuple(accesses),
        )
        self.launches.append(made)

    def _tensor(self, address: int, shape: Tensor | Layout) -> tuple[Any, ...]:
        ne = [self.counts.entry(n) for n in shape.ne]
        return address, ne, [int(n) for n in shape.nb]


def _has_count(value: object) -> bool:
    values: Sequence[object] = value if isinstance(value, (tuple, list)) else [value]
    return any(isinstance(one, Count) for one in values)


class _Work(Work):
    def __init__(self, builder: PlanBuilder, step: Step, info: DeviceInfo) -> None:
        self.step = step
        self.info = info
        self._builder = builder

    def address(self, tensor: Tensor) -> int:
        return self._builder.address(tensor)

    def scratch(self, n_bytes: int, what: str = "scratch") -> Scratch:
        return self._builder.scratch(what, n_bytes)

    def derived(self, kind: str, x: Tensor, n_bytes: int, *more: Tensor) -> tuple[Scratch, bool]:
        return self._builder.derived(kind, (x, *more), n_bytes)

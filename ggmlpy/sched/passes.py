"""Passes: named functions over the steps of a split that run before memory is given out.

    residual, norm, glu, rope, bias     nodes in a row become one step (fusion.py)

They change no bit of any result. `passes=` of compute, Executable and Context says which run; where
it is None the environment variable GGMLPY_PASSES does: `all`, `none`, or names separated by commas.
A fused step is made where

    its nodes follow each other in the split, so nothing else happens between them;
    nothing else reads its interior values: no other node, no other split, and they are no outputs;
    it writes into no memory of another tensor, as a cache, that its earlier nodes read;
    the split's backend says that it runs such a step (`Backend.supports_step`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence, Set

from ggmlpy.backends.step import Step
from ggmlpy.errors import ArgumentError
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor
from ggmlpy.sched import fusion
from ggmlpy.sched.scheduler import Split, read_after
from ggmlpy.sched.writes import share_memory

PASSES: dict[str, fusion.Pass] = {
    "residual": fusion.residual,
    "norm": fusion.norm,
    "glu": fusion.glu,
    "rope": fusion.rope,
    "bias": fusion.bias,
}
VARIABLE = "GGMLPY_PASSES"
_WISHED = os.environ.get(VARIABLE) or "all"


def chosen(passes: str | Iterable[str] | None = None) -> frozenset[str]:
    """The names of passes that `passes` stands for, by default GGMLPY_PASSES, else all.

    Raises ArgumentError for a name that there is not.
    """
    given = _WISHED if passes is None else passes
    if given == "all":
        return frozenset(PASSES)
    if given == "none":
        return frozenset()
    names = given.split(",") if isinstance(given, str) else list(given)
    unknown = [name for name in names if name not in PASSES]
    if unknown:
        raise ArgumentError(
            f"{VARIABLE if passes is None else 'passes'}: there is no"
            f" {', '.join(map(repr, unknown))}; there are {', '.join(PASSES)}, all and none"
        )
    return frozenset(names)


def run_passes(
    graph: Graph, splits: Sequence[Split], passes: str | Iterable[str] | None = None
) -> None:
    """Replace the steps of each split by what the chosen passes make of them."""
    names = chosen(passes)
    for split, outside in zip(splits, read_after(graph, splits), strict=True):
        fusible = _Fusible(split, outside)
        for name, run in PASSES.items():
            if name in names:
                split.steps = run(split.steps, fusible.accepts)


class _Fusible:
    """Which fused steps a split may have."""

    def __init__(self, split: Split, outside: Set[Tensor]) -> None:
        self._backend = split.backend
        self._outside = outside  # roots that are read when the split is over
        self._n_reads = Counter(source.root for node in split.nodes for source in node.src)

    def accepts(self, step: Step) -> bool:
        """Whether the step gives what its nodes give one by one, and the backend runs it."""
        return (
            all(self._is_own(value, step) for value in step.interior)
            and not any(x.root in step.nodes for x in step.operands.values())
            and _writes_apart(step)
            and self._backend.supports_step(step)
        )

    def _is_own(self, value: Tensor, step: Step) -> bool:
        """Whether a value has memory of its own that none but the step reads."""
        if value.root is not value or value in self._outside:
            return False
        return self._n_reads[value] == sum(s.root is value for n in step.nodes for s in n.src)


def _writes_apart(step: Step) -> bool:
    """Whether results that lie in another tensor's memory share none with what other nodes read.

    What the writing node itself reads was looked at by check_writes.
    """
    for result in step.results.values():
        if result.root is result:
            continue
        read = [x for node in step.nodes if node is not result for x in node.src]
        if any(share_memory(x, result) for x in read):
            return False
    return True

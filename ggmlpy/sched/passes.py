"""Passes: named functions over the steps of a split, which run before memory is allocated.

    residual, norm, glu, rope, bias, scan   consecutive nodes become one step (fusion.py)
    products, stores                        steps that do not depend on each other do (grouping.py)

Results have the same bits with and without them. `passes=` of compute, Executable and Context
selects passes; if it is None, the environment variable GGMLPY_PASSES does: `all`, `none`, or names
separated by commas. Nodes are fused if

    they are consecutive in the split, or may change places with what runs between them;
    nothing else reads the interior values: no other node, no other split, and none is an output;
    they do not write into memory of another tensor, such as a cache, that earlier ones read, but
    for what the step itself updates;
    the split's backend supports the step (`Backend.supports_step`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence, Set

from ggmlpy.backends.step import Step
from ggmlpy.errors import ArgumentError
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor
from ggmlpy.sched import fusion, grouping
from ggmlpy.sched.scheduler import Split, read_after
from ggmlpy.sched.writes import share_memory

PASSES: dict[str, fusion.Pass] = {
    "residual": fusion.residual,
    "norm": fusion.norm,
    "glu": fusion.glu,
    "rope": fusion.rope,
    "bias": fusion.bias,
    "scan": fusion.scan,
    "products": grouping.products,
    "stores": grouping.stores,
}
VARIABLE = "GGMLPY_PASSES"
_DEFAULT = os.environ.get(VARIABLE) or "all"


def chosen(passes: str | Iterable[str] | None = None) -> frozenset[str]:
    """The names of the passes that `passes` selects; None: those of GGMLPY_PASSES, or else all.

    Raises ArgumentError for an unknown name.
    """
    given = _DEFAULT if passes is None else passes
    if given == "all":
        return frozenset(PASSES)
    if given == "none":
        return frozenset()
    names = given.split(",") if isinstance(given, str) else list(given)
    unknown = [name for name in names if name not in PASSES]
    if unknown:
        raise ArgumentError(
            f"{VARIABLE if passes is None else 'passes'}: unknown pass"
            f" {', '.join(map(repr, unknown))}; known are {', '.join(PASSES)}, all and none"
        )
    return frozenset(names)


def run_passes(
    graph: Graph, splits: Sequence[Split], passes: str | Iterable[str] | None = None
) -> None:
    """Apply the chosen passes to the steps of each split."""
    names = chosen(passes)
    for split, outside in zip(splits, read_after(graph, splits), strict=True):
        fusible = _Fusible(split, outside)
        for name, run in PASSES.items():
            if name in names:
                split.steps = run(split.steps, fusible.accepts)


class _Fusible:
    """Decides which fused steps a split may have."""

    def __init__(self, split: Split, outside: Set[Tensor]) -> None:
        self._backend = split.backend
        self._outside = outside  # roots that are read after the split
        self._n_reads = Counter(source.root for node in split.nodes for source in node.src)

    def accepts(self, step: Step) -> bool:
        """Whether the step has the results of its nodes run one by one, and is supported."""
        return (
            all(self._is_own(value, step) for value in step.interior)
            and not any(x.root in step.nodes for x in step.operands.values())
            and _writes_apart(step)
            and self._backend.supports_step(step)
        )

    def _is_own(self, value: Tensor, step: Step) -> bool:
        """Whether a value has memory of its own, which only the step reads."""
        if value.root is not value or value in self._outside:
            return False
        return self._n_reads[value] == sum(s.root is value for n in step.nodes for s in n.src)


def _writes_apart(step: Step) -> bool:
    """Whether results in another tensor's memory do not overlap the sources of other nodes.

    `check_writes` has checked the sources of the writing node itself.
    """
    for name, result in step.results.items():
        if result.root is result:
            continue
        updated = {step.operands[operand] for operand in step.updates.get(name, ())}
        read = [x for n in step.nodes if n is not result for x in n.src if x not in updated]
        if any(share_memory(x, result) for x in read):
            return False
    return True

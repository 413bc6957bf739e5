"""Nodes of random graphs from the table of cases: any op that has a small case.

Their leaves have the values of the case, and their nodes are ops with parameters, not calls of
functions, because builders of cases call what they like.
"""

from __future__ import annotations

from functools import cache
from math import prod

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases import CASES, training
from ggmlpy.conformance.graphs.drawing import Drawing, Refused
from ggmlpy.conformance.graphs.program import OF_OP, encoded
from ggmlpy.conformance.inputs import build
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor
from ggmlpy.graph.types import F32

_ON_REFERENCE = {case.op for case in training.CASES}  # ops that few other backends have
_MOST = 6_000  # elements of a case's tensors, leaves and all
_N_TRIES = 5
_ROLES = ((Flag.WEIGHT, "weight"), (Flag.STATE, "state"), (Flag.INPUT, "input"))


def from_case(d: Drawing) -> None:
    """The graph of a case; over values that are there, where they have as many elements."""
    case, graph = _small_case(d)
    seed = d.rng.randrange(100)
    names: dict[Tensor, str] = {}
    for i, leaf in enumerate(graph.leafs):
        names[leaf] = _value_like(d, leaf) or _leaf_of(d, case, seed, i, leaf)
    for node in graph.nodes:
        assert node.op is not None
        params = {name: encoded(value) for name, value in node.op.params().items()}
        names[node] = d.add(OF_OP + node.op.name, [names[s] for s in node.src], **params)


def _small_case(d: Drawing) -> tuple[Case, Graph]:
    by_op = _cases_by_op()
    for _ in range(_N_TRIES):
        case = d.rng.choice(by_op[d.rng.choice(list(by_op))])
        graph = _small_graph(case)
        if graph is not None:
            return case, graph
    raise Refused


@cache
def _cases_by_op() -> dict[str, list[Case]]:
    """Those of small sources."""
    found: dict[str, list[Case]] = {}
    for case in CASES:
        if case.op not in _ON_REFERENCE and sum(map(prod, case.ne)) <= _MOST:
            found.setdefault(case.op, []).append(case)
    return found


@cache
def _small_graph(case: Case) -> Graph | None:
    """The case's graph; None for one with large tensors, or that does not go through JSON."""
    graph = Graph(build(case))
    tensors = [*graph.leafs, *graph.nodes]
    if graph.symbols or sum(tensor.spec.n_elements for tensor in tensors) > _MOST:
        return None
    try:
        for node in graph.nodes:
            assert node.op is not None
            encoded(list(node.op.params().values()))
    except TypeError:
        return None
    return graph


def _value_like(d: Drawing, leaf: Tensor) -> str:
    """A value of the graph with as many elements, in the leaf's shape; "" for none."""
    if leaf.type is not F32 or leaf.flags or d.chance(0.5):
        return ""
    n = leaf.spec.n_elements
    known = [name for name, t in d.tensors.items() if t.type is F32 and t.spec.n_elements == n]
    if not known:
        return ""
    value = d.rng.choice(known)
    if d.tensors[value].ne == leaf.ne:
        return value
    if not d.tensors[value].contiguous:
        value = d.add("cont", [value])
    return d.add("reshape_4d", [value], **{f"ne{i}": n for i, n in enumerate(leaf.ne)})


def _leaf_of(d: Drawing, case: Case, seed: int, i: int, leaf: Tensor) -> str:
    roles = {name: True for flag, name in _ROLES if flag in leaf.flags}
    more = {"case": case.id, "index": i, "seed": seed, **roles}
    return d.leaf(leaf.type.name, leaf.ne, "case", **more)

"""The smallest program that fails: fewest nodes, then smallest shapes, then plain values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ggmlpy.conformance.graphs.leaves import placeless_leaf
from ggmlpy.conformance.graphs.program import LEAF, Node, Program, build, wanted
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import type_of

Fails = Callable[[Program], bool]

_STRUCTURE = ("pin", "home", "input", "state", "weight", "unique")


def shrink(
    program: Program, fails: Fails, *, max_tries: int = 2000, max_s: float = 30.0
) -> Program:
    """A smaller program for which `fails` holds as for this one.

    Proposals (`smaller`) are taken as long as one fails, at most so many and for so long.
    """
    deadline = time.monotonic() + max_s
    n_left = max_tries
    program = pruned(program)
    tried: set[str] = set()
    found = True
    while found:
        found = False
        for candidate in smaller(program):
            key = repr(candidate)
            if key in tried:
                continue
            tried.add(key)
            n_left -= 1
            if n_left < 0 or time.monotonic() > deadline:
                return program
            if fails(candidate):
                program, found = candidate, True
                break
    return program


def smaller(program: Program) -> Iterator[Program]:
    """Programs that are smaller than this one, those by most first."""
    yield from _fewer_wanted(program)
    yield from _fewer_nodes(program)
    if program.n_runs > 1:
        yield replace(program, n_runs=1)
        yield replace(program, n_runs=program.n_runs - 1)
    yield from _plainer_roles(program)
    yield from _smaller_shapes(program)
    yield from _plainer_values(program)


def pruned(program: Program) -> Program:
    """Without the nodes that nothing wanted needs, and with what is wanted named."""
    tensors = build(program, placeless_leaf)
    names = {tensor: name for name, tensor in reversed(tensors.items())}
    outputs = [name for name in program.wanted if name in tensors]
    outputs = outputs or [names[t] for t in wanted(program, tensors) if t in names]
    needed = set(outputs)
    mutators = _mutators(program)
    for node in reversed(program.nodes):
        if node.name in needed or mutators.get(node.name, "") in needed:
            needed |= {node.name, *(source for source in node.sources if source is not None)}
    kept = tuple(node for node in program.nodes if node.name in needed and node.name in tensors)
    return replace(program, nodes=kept, wanted=tuple(outputs))


def _mutators(program: Program) -> dict[str, str]:
    """Calls that change a node and return it, with that node."""
    return {n.name: n.sources[0] or "" for n in program.nodes if n.op.endswith("_add_sinks")}


# ---- structure


def _fewer_wanted(program: Program) -> Iterator[Program]:
    """A single value, any value; then one less."""
    if len(program.wanted) > 1:
        for name in program.wanted:
            yield pruned(replace(program, wanted=(name,)))
        for i in range(len(program.wanted)):
            rest = program.wanted[:i] + program.wanted[i + 1 :]
            yield pruned(replace(program, wanted=rest))
    known = {node.name: node for node in program.nodes}
    for i, name in enumerate(program.wanted):  # what is wanted may come earlier
        for source in known[name].sources if name in known else ():
            if source is not None and not known[source].is_leaf and source not in program.wanted:
                other = (*program.wanted[:i], source, *program.wanted[i + 1 :])
                yield pruned(replace(program, wanted=other))


def _fewer_nodes(program: Program) -> Iterator[Program]:
    """A leaf instead of a node, the last ones with most before them first; or one of its sources;
    another value of the same shape instead of a source."""
    tensors = build(program, placeless_leaf)
    for node in reversed(program.nodes):
        tensor = tensors.get(node.name)
        if node.is_leaf or tensor is None or node.name in program.wanted:
            continue
        if not tensor.type.block_size > 1 and tensor.type.is_float:
            yield pruned(_with(program, node.name, _leaf_like(node, tensor)))
        for source in dict.fromkeys(node.sources):
            if source is not None and tensors[source].ne == tensor.ne:
                yield pruned(_renamed(program, node.name, source))
    for i, node in enumerate(program.nodes):
        for j, source in enumerate(node.sources):
            if source is None:
                continue
            spec = tensors[source].spec if source in tensors else None
            same = (
                other.name
                for other in program.nodes[:i]
                if other.name in tensors and other.name != source and spec is not None
                and tensors[other.name].ne == spec.ne and tensors[other.name].type is spec.type
                and other.name not in node.sources
            )  # fmt: skip
            for other in list(same)[:3]:
                sources = (*node.sources[:j], other, *node.sources[j + 1 :])
                changed = pruned(_with(program, node.name, replace(node, sources=sources)))
                if len(changed.nodes) < len(program.nodes):
                    yield changed


def _leaf_like(node: Node, tensor: Tensor) -> Node:
    params = {"type": tensor.type.name, "ne": list(tensor.ne), "fill": "uniform", "seed": 1}
    return Node(node.name, LEAF, (), params)


def _with(program: Program, name: str, node: Node) -> Program:
    nodes = tuple(node if other.name == name else other for other in program.nodes)
    return replace(program, nodes=nodes)


def _renamed(program: Program, name: str, source: str) -> Program:
    """Readers of a node read its source instead."""
    nodes = tuple(
        replace(node, sources=tuple(source if s == name else s for s in node.sources))
        for node in program.nodes
        if node.name != name
    )
    return replace(program, nodes=nodes)


def _plainer_roles(program: Program) -> Iterator[Program]:
    """No pins, homes and roles: of all nodes, then of single ones."""
    for name in _STRUCTURE:
        having = [node for node in program.nodes if node.params.get(name) is not None]
        if len(having) > 1:
            yield _without(program, having, name)
        for node in having:
            yield _without(program, [node], name)


def _without(program: Program, nodes: Sequence[Node], param: str) -> Program:
    for node in nodes:
        params = {k: v for k, v in node.params.items() if k != param}
        program = _with(program, node.name, replace(node, params=params))
    return program


# ---- shapes


def _smaller_shapes(program: Program) -> Iterator[Program]:
    """Every extent of one size made smaller at once, in leaves and in parameters; then single ones.

    Candidates that cannot be built, or have other nodes, are left out.
    """
    sizes = sorted({n for node in program.nodes for n in _numbers(node) if n > 1}, reverse=True)
    for n in sizes:
        for new in dict.fromkeys((1, 2, 3, 32, 64, 256, n // 2, n - 1)):
            if 0 < new < n:
                yield from _same_nodes(program, _resized(program, n, new))
    for node in program.nodes:
        if node.is_leaf:
            for i, n in enumerate(node.params["ne"]):
                for new in dict.fromkeys((1, 2, 32, n // 2)):
                    if 0 < new < n:
                        ne = [*node.params["ne"][:i], new, *node.params["ne"][i + 1 :]]
                        resized = replace(node, params={**node.params, "ne": ne})
                        yield from _same_nodes(program, _with(program, node.name, resized))


def _numbers(node: Node) -> list[int]:
    """A leaf's extents; a call's whole numbers."""
    if node.is_leaf:
        return list(node.params["ne"])
    names = node.params.keys() - {"pin", "mode"}
    values = [v for k, v in node.params.items() if k in names]
    listed = [n for v in values if isinstance(v, list) for n in v]
    return [n for n in (*values, *listed) if type(n) is int]


def _resized(program: Program, n: int, new: int) -> Program:
    """Another extent, also as a factor of the strides and products that calls have."""

    def scaled(value: Any) -> Any:
        if isinstance(value, list):
            return [scaled(element) for element in value]
        if type(value) is not int or value < n:
            return value
        return value // n * new if value % n == 0 else value

    nodes = []
    for node in program.nodes:
        params = dict(node.params)
        if node.is_leaf:
            params["ne"] = [new if extent == n else extent for extent in params["ne"]]
            if params.get("limit") == n:
                params["limit"] = new
        else:
            params |= {k: scaled(v) for k, v in params.items() if k not in ("pin", "mode")}
        nodes.append(replace(node, params=params))
    return replace(program, nodes=tuple(nodes))


def _same_nodes(program: Program, candidate: Program) -> Iterator[Program]:
    """The candidate if it can be built whole, and is smaller."""
    try:
        tensors = build(candidate, placeless_leaf)
    except Exception:  # shapes that are none
        return
    if all(node.name in tensors for node in candidate.nodes) and _size(candidate) < _size(program):
        yield candidate


def _size(program: Program) -> int:
    sizes: list[int] = [prod(node.params["ne"]) for node in program.nodes if node.is_leaf]
    calls = [abs(n) for node in program.nodes if not node.is_leaf for n in _numbers(node)]
    return sum(sizes) + sum(calls)


# ---- values


def _plainer_values(program: Program) -> Iterator[Program]:
    """Leaves of f32, of ones or of values of seed 0; parameters 0 or 1; short names."""
    for node in program.nodes:
        params = node.params
        if node.is_leaf:
            plain = _plainer_cases(params)
            plain += [{**params, "seed": 0}] if params["seed"] else []
            if type_of(params["type"]).is_float:
                plain += [{**params, "fill": fill} for fill in _plainer_fills(params["fill"])]
                plain += [{**params, "type": "f32"}] if params["type"] != "f32" else []
        else:
            plain = [
                {**params, k: new}
                for k, v in params.items()
                for new in (0, 1)
                if type(v) in (int, float) and k != "pin" and v not in (0, 1)
            ]
        for new in plain:
            yield from _buildable(program, _with(program, node.name, replace(node, params=new)))


def _plainer_cases(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Ordinary values instead of a case's."""
    if params["fill"] != "case":
        return []
    rest = {k: v for k, v in params.items() if k not in ("case", "index")}
    if type_of(params["type"]).is_float or type_of(params["type"]).is_quantized:
        return [{**rest, "fill": "uniform"}]
    return [{**rest, "fill": "ids", "limit": limit} for limit in (1, 2)]


def _plainer_fills(fill: str) -> tuple[str, ...]:
    order = ("ones", "ties", "uniform")
    return order[: order.index(fill)] if fill in order else order


def _buildable(program: Program, candidate: Program) -> Iterator[Program]:
    try:
        tensors = build(candidate, placeless_leaf)
    except Exception:  # parameters that are none
        return
    if all(node.name in tensors for node in candidate.nodes):
        yield candidate

"""Checks of graphs whose counts are set by runs, made once per plan and for all backends.

Shapes are checked by bounds when nodes are made. That two counts with one bound are one count, or
that a view of a few rows lies inside of fewer, is checked here: with other values of the symbols,
for which every node must have the shape that its counts say. Each symbol's bound less one, with the
bounds of the others, tells apart any two linear forms; and with 1 for all of them shapes are least.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ggmlpy.common.arguments import WrongKind, as_whole, kind_of
from ggmlpy.errors import ArgumentError, ShapeError
from ggmlpy.graph.count import Counts, Symbol
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Flag, Tensor


def check_counts(graph: Graph) -> tuple[Symbol, ...]:
    """The graph's symbols. Raises ShapeError for a node whose shape, with some values of them, is
    not that of its sources, and for a weight with such a count."""
    symbols = graph.symbols
    for leaf in graph.leafs if symbols else ():
        if Flag.WEIGHT in leaf.flags and leaf.spec.at(_ones(symbols)) is not leaf.spec:
            raise ShapeError(f"{graph.name_of(leaf)} is {leaf.spec}: counts of weights are fixed")
    for counts in _samples(symbols):
        _check_shapes(graph, counts)
    return symbols


def _ones(symbols: Sequence[Symbol]) -> dict[Symbol, int]:
    return dict.fromkeys(symbols, 1)


def _samples(symbols: Sequence[Symbol]) -> Iterator[Counts]:
    bounds = {symbol: symbol.bound for symbol in symbols}
    ones = _ones(symbols)
    if bounds == ones:
        return
    yield ones
    for symbol in symbols:
        counts = {**bounds, symbol: max(1, symbol.bound - 1)}
        if counts not in (bounds, ones):
            yield counts


def _check_shapes(graph: Graph, counts: Counts) -> None:
    specs: dict[Tensor, Spec] = {}

    def spec_of(tensor: Tensor) -> Spec:
        spec = specs.get(tensor)
        if spec is None:
            spec = specs[tensor] = tensor.spec.at(counts)
        return spec

    for node in graph.nodes:
        assert node.op is not None
        sources = [spec_of(source) for source in node.src]
        spec = spec_of(node)
        if spec is node.spec and all(map(_is_fixed, sources, node.src)):
            continue
        try:
            found = node.op.at(counts).infer(*sources)
        except ShapeError as error:
            raise _wrong(graph, node, counts, str(error)) from None
        if found.ne != spec.ne:
            raise _wrong(graph, node, counts, f"it is {found}: it must be {spec}")


def _is_fixed(spec: Spec, tensor: Tensor) -> bool:
    return spec is tensor.spec


def _wrong(graph: Graph, node: Tensor, counts: Counts, reason: str) -> ShapeError:
    assert node.op is not None
    values = ", ".join(f"{symbol} = {value}" for symbol, value in counts.items())
    shapes = ", ".join(f"{graph.reference(source)} is {source.spec}" for source in node.src)
    return ShapeError(
        f"{graph.name_of(node)} ({node.op.name}) is {node.spec}, {shapes}: with {values} {reason}"
    )


def checked_counts(symbols: Sequence[Symbol], counts: Mapping[Symbol, int]) -> dict[Symbol, int]:
    """A value for each symbol. Raises ArgumentError for values that are missing, out of range, or
    of another symbol."""
    if counts.keys() != set(symbols):
        given = ", ".join(map(str, counts)) or "none"
        must = ", ".join(map(str, symbols)) or "none"
        raise ArgumentError(f"set_counts: there are values for {given}: they must be for {must}")
    checked = {}
    for symbol, value in counts.items():
        try:
            checked[symbol] = as_whole(value)
        except WrongKind:
            raise ArgumentError(
                f"set_counts: {symbol} is {kind_of(value)}: it must be a whole number"
            ) from None
        if not 1 <= checked[symbol] <= symbol.bound:
            raise ArgumentError(
                f"set_counts: {symbol} is {value}: it must be from 1 to {symbol.bound}"
            )
    return checked

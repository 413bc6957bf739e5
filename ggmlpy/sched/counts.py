"""Checks of graphs whose counts are set by runs, made once per plan and for all backends.

Shapes are checked by bounds when nodes are made. That two counts with one bound are one count, or
that a view of a few rows lies inside of fewer, is checked here: with other values of the symbols,
for which every node must have the shape that its counts say. Each symbol's bound less one, with the
bounds of the others, tells apart any two linear forms; and with 1 for all of them shapes are least.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from ggmlpy.common.arguments import WrongKind, as_whole, kind_of
from ggmlpy.errors import ArgumentError, ShapeError
from ggmlpy.graph.count import Count, Counts, Symbol, has_counts
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor


def check_counts(graph: Graph) -> tuple[Symbol, ...]:
    """The graph's symbols. Raises ShapeError for a node whose shape, with some values of them, is
    not that of its sources, and for a weight with such a count."""
    symbols = graph.symbols
    for leaf in graph.leafs if symbols else ():
        if Flag.WEIGHT in leaf.flags and leaf.spec.at(_ones(symbols)) is not leaf.spec:
            raise ShapeError(f"{graph.name_of(leaf)} is {leaf.spec}: counts of weights are fixed")
    samples = list(_samples(symbols))
    for node in _different(graph) if samples else ():
        for counts in samples:
            _check_shape(graph, node, counts)
    return symbols


def _different(graph: Graph) -> Iterable[Tensor]:
    """One of all nodes that have the same op, sources and result but for their values: the layers
    of a model have the same shapes."""
    found: dict[Hashable, Tensor] = {}
    for node in graph.nodes:
        specs = [node.spec, *(source.spec for source in node.src)]
        if any(has_counts(spec.ne) for spec in specs):
            forms = [str(n) if isinstance(n, Count) else n for spec in specs for n in spec.ne]
            found.setdefault((node.op, *specs, *forms), node)
    return found.values()


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


def _check_shape(graph: Graph, node: Tensor, counts: Counts) -> None:
    assert node.op is not None
    sources = [source.spec.at(counts) for source in node.src]
    spec = node.spec.at(counts)
    try:
        found = node.op.at(counts).infer(*sources)
    except ShapeError as error:
        raise _wrong(graph, node, counts, str(error)) from None
    if found.ne != spec.ne:
        raise _wrong(graph, node, counts, f"it is {found}: it must be {spec}")


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

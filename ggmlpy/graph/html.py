"""A graph as a page of HTML: one section per layer, links to sources and readers, a search box.

The page is self-contained and loads nothing. Names that come from a file are escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from ggmlpy.graph.html_page import LEAFS, NODES, PAGE, SCRIPT, SECTION, STYLE
from ggmlpy.graph.layers import layers_of
from ggmlpy.graph.nodes import NO_HOMES, Homes, Nodes
from ggmlpy.graph.tensor import Flag, Tensor

_FAMILIES = {
    "matmul": ("mul_mat", "mul_mat_id", "out_prod"),
    "attention": ("flash_attn_ext", "soft_max", "rope", "diag_mask_inf"),
    "norm": ("rms_norm", "norm", "group_norm", "l2_norm"),
    "memory": ("get_rows", "set_rows", "cpy", "cont", "dup", "cast", "concat", "set"),
}
_FAMILY = {op: family for family, ops in _FAMILIES.items() for op in ops}
_MAX_OPEN = 2  # sections that are open when the page is


@dataclass(slots=True)
class _Section:
    """The tensors of a layer, or those before or after all layers."""

    title: str
    leafs: list[Tensor] = field(default_factory=list)
    nodes: list[Tensor] = field(default_factory=list)


def to_html(graph: Nodes, title: str = "graph", homes: Homes = NO_HOMES) -> str:
    """The page for `graph`; `title` is its heading, `homes` has backends and memory to show."""
    page = _Page(graph, homes)
    sections = _sections(graph)
    body = "\n".join(page.section(s, is_open=i < _MAX_OPEN) for i, s in enumerate(sections))
    return PAGE.format(
        title=escape(title),
        summary=_summary(graph),
        ops=_op_buttons(graph),
        sections=body,
        style=STYLE,
        script=SCRIPT,
    )


def _sections(graph: Nodes) -> list[_Section]:
    """Input, every layer in the order of its first node, output; empty ones left out."""
    layers = layers_of(graph)
    before, after = _Section("input"), _Section("output")
    by_layer: dict[int, _Section] = {}
    for node in graph.nodes:
        layer = layers[node]
        if layer is not None:
            by_layer.setdefault(layer, _Section(f"blk.{layer}")).nodes.append(node)
        else:
            (after if by_layer else before).nodes.append(node)
    first_reader = {source: n for n in reversed(graph.nodes) for source in n.src}
    tail = set(after.nodes)
    for leaf in graph.leafs:
        layer = layers[leaf]
        if layer is not None and layer in by_layer:
            by_layer[layer].leafs.append(leaf)
        else:
            (after if first_reader.get(leaf) in tail else before).leafs.append(leaf)
    return [s for s in (before, *by_layer.values(), after) if s.leafs or s.nodes]


class _Page:
    """Writes rows, with the number and the readers of every tensor."""

    def __init__(self, graph: Nodes, homes: Homes) -> None:
        self._graph = graph
        self._homes = homes
        self._number = {t: i for ts in (graph.leafs, graph.nodes) for i, t in enumerate(ts)}
        self._readers: dict[Tensor, list[Tensor]] = {t: [] for t in self._number}
        for node in graph.nodes:
            for source in dict.fromkeys(node.src):
                self._readers[source].append(node)
        self._outputs = set(graph.outputs)

    def section(self, section: _Section, *, is_open: bool) -> str:
        computed = sum(1 for n in section.nodes if n.op is not None and n.op.computes)
        n_views = len(section.nodes) - computed
        counts = [_counted(n, noun) for n, noun in ((computed, "op"), (n_views, "view")) if n]
        weights = [t for t in section.leafs if Flag.WEIGHT in t.flags]
        if weights:
            size = _size(sum(t.spec.n_bytes for t in weights))
            counts.append(f"{_counted(len(weights), 'weight')} ({size})")
        leafs = "\n".join(self._leaf_row(t) for t in section.leafs)
        nodes = "\n".join(self._node_row(t) for t in section.nodes)
        return SECTION.format(
            attributes=" open" if is_open else "",
            title=escape(section.title),
            counts=", ".join(counts),
            nodes=NODES.format(rows=nodes) if nodes else "",
            leafs=LEAFS.format(rows=leafs) if leafs else "",
        )

    def _node_row(self, node: Tensor) -> str:
        assert node.op is not None
        params = _params_text(node.op.params())
        family = "view" if not node.op.computes else _FAMILY.get(node.op.name, "other")
        sources = ", ".join(self._link(s) for s in node.src)
        tag = '<span class="tag">output</span>' if node in self._outputs else ""
        return (
            f'<tr id="{self._id(node)}" class="{family}"><td class="number">{self._number[node]}'
            f'<td><span class="op">{escape(node.op.name)}</span>'
            f'<span class="params" title="{escape(params)}">{escape(params)}</span>'
            f"<td>{self._name(node)}{tag}{self._type_and_shape(node)}"
            f"<td>{sources}<td>{self._reader_links(node)}"
        )

    def _leaf_row(self, leaf: Tensor) -> str:
        kinds = [f.name.lower() for f in Flag if f in leaf.flags and f.name] or ["leaf"]
        return (
            f'<tr id="{self._id(leaf)}" class="leaf"><td class="number">{self._number[leaf]}'
            f"<td>{' '.join(kinds)}<td>{self._name(leaf)}{self._type_and_shape(leaf)}"
            f'<td class="size">{_size(leaf.spec.n_bytes)}<td>{self._reader_links(leaf)}'
        )

    def _id(self, tensor: Tensor) -> str:
        return f"{'leaf' if tensor.is_leaf else 'node'}-{self._number[tensor]}"

    def _name(self, tensor: Tensor) -> str:
        home = self._homes.get(tensor)
        tag = "" if home is None else f'<span class="home">{escape(home)}</span>'
        return f'<span class="name">{_breakable(self._graph.name_of(tensor))}</span>{tag}'

    def _type_and_shape(self, tensor: Tensor) -> str:
        return f"<td>{tensor.type}<td>{tensor.spec.shape_text}"

    def _link(self, tensor: Tensor, label: str = "") -> str:
        kind = ' class="to-leaf"' if tensor.is_leaf else ""
        shown = label or f"{self._number[tensor]} {_breakable(self._graph.name_of(tensor))}"
        title = escape(self._graph.reference(tensor))
        return f'<a href="#{self._id(tensor)}"{kind} title="{title}">{shown}</a>'

    def _reader_links(self, tensor: Tensor) -> str:
        return " ".join(self._link(r, str(self._number[r])) for r in self._readers[tensor])


def _summary(graph: Nodes) -> str:
    computed = sum(1 for n in graph.nodes if n.op is not None and n.op.computes)
    weights = sum(t.spec.n_bytes for t in graph.leafs if Flag.WEIGHT in t.flags)
    state = sum(t.spec.n_bytes for t in graph.leafs if Flag.STATE in t.flags)
    facts = [
        f"{len(graph.nodes)} nodes ({computed} compute, {len(graph.nodes) - computed} are views)",
        f"{len(graph.leafs)} leafs",
        f"{_size(weights)} of weights",
        f"{_size(state)} of state",
    ]
    return " · ".join(facts)


def _op_buttons(graph: Nodes) -> str:
    """A button for each op that computes, the most frequent first."""
    counts = Counter(n.op.name for n in graph.nodes if n.op is not None and n.op.computes)
    return "\n".join(
        f'<button type="button" class="{_FAMILY.get(name, "other")}" data-op="{escape(name)}">'
        f"{escape(name)} <b>{n}</b></button>"
        for name, n in counts.most_common()
    )


def _params_text(params: Mapping[str, object]) -> str:
    """All parameters but `ne`, which the column of shapes shows."""
    shown = {name: value for name, value in params.items() if name != "ne"}
    return ", ".join(f"{name}={_value_text(value)}" for name, value in shown.items())


def _value_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_value_text, value))}]"
    return str(value)


def _breakable(name: str) -> str:
    """The name, escaped, with opportunities for line breaks."""
    return escape(name).replace(".", ".<wbr>").replace("_", "_<wbr>")


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _size(n_bytes: int) -> str:
    size, unit = float(n_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    return f"{size:.3g} {unit}"

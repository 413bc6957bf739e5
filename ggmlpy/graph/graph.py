"""Compute graphs: all tensors that some outputs depend on, in running order."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from ggmlpy.common.arguments import checked
from ggmlpy.common.notebook import table
from ggmlpy.graph.count import has_counts
from ggmlpy.graph.html import to_html
from ggmlpy.graph.nodes import NO_HOMES, Homes, Nodes
from ggmlpy.graph.tensor import Flag, Tensor

MAX_NAME_WIDTH = 36  # columns of a dump; longer names are not aligned


class Graph(Nodes):
    """The tensors reachable from `outputs`: `leafs` hold data, `nodes` are in running order.

    The order is ggml's: depth first, sources before the node, left to right, and outputs in the
    order given, one by one or as a list. So a write (set_rows, cpy) that a later output reads comes
    first if it is listed first. `to_text()`, which `print(graph)` writes, `to_dot()`, `to_json()`
    and `to_html()` dump it; with `homes` also the backends of nodes and the memory of leafs.
    Raises ArgumentError for an argument that is not a tensor, and for a cycle of sources.
    """

    def __repr__(self) -> str:
        ends = ", ".join(self.name_of(t) for t in self.outputs[:3])
        more = ", …" if len(self.outputs) > 3 else ""
        return f"<Graph of {ends}{more}: {len(self.nodes)} nodes, {len(self.leafs)} leafs>"

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        """For notebooks: how many tensors and ops there are; `to_html` makes a page of it."""
        computing = [
            node.op.name for node in self.nodes if node.op is not None and node.op.computes
        ]
        n_bytes = sum(leaf.spec.n_bytes for leaf in self.leafs if Flag.WEIGHT in leaf.flags)
        ops = Counter(computing).most_common()
        rows = [
            ("nodes", f"{len(self.nodes)}, of which {len(computing)} compute"),
            ("leafs", f"{len(self.leafs)}, with {n_bytes / 1e6:.1f} MB of weights"),
            ("outputs", ", ".join(str(t.spec) for t in self.outputs[:3])),
            ("ops", ", ".join(f"{name} {n}" for name, n in ops)),
        ]
        return table(f"Graph of {', '.join(map(self.name_of, self.outputs[:3]))}", rows)

    def to_text(self, homes: Homes = NO_HOMES) -> str:
        """One line per tensor. Sources have number and name, since names need not be unique."""
        bounds = "".join(f", {s.name} <= {s.bound}" for s in self.symbols)
        lines = [f"graph: {len(self.nodes)} nodes, {len(self.leafs)} leafs{bounds}"]
        names = [self.name_of(t) for t in self._index]
        width = min(MAX_NAME_WIDTH, max(map(len, names), default=0))
        for i, leaf in enumerate(self.leafs):
            lines.append(f"leaf {i:4d}: {self._describe(leaf, width)}{_on(homes, leaf)}")
        for i, tensor in enumerate(self.nodes):
            sources = ", ".join(self.reference(s) for s in tensor.src)
            described = self._describe(tensor, width)
            computed = f"{described} = {tensor.op} of {sources}"
            lines.append(f"node {i:4d}: {computed}{_on(homes, tensor)}")
        return "\n".join(lines)

    def _describe(self, tensor: Tensor, width: int) -> str:
        flags = f" ({_flag_names(tensor)})" if tensor.flags else ""
        return f"{self.name_of(tensor):{width}s}  {tensor.spec}{flags}"

    def to_dot(self, homes: Homes = NO_HOMES) -> str:
        """Graphviz text: boxes for leafs, ellipses for nodes, dashed edges into views."""
        lines = ["digraph ggmlpy {", "  rankdir=TB; node [fontname=monospace, fontsize=10];"]
        for tensor in (*self.leafs, *self.nodes):
            op = "" if tensor.op is None else f"{tensor.op.name}\\n"
            style = "shape=box, style=filled, fillcolor=" + _leaf_colour(tensor)
            if not tensor.is_leaf:
                style = "shape=ellipse"
            shown = f"{_escape(self.reference(tensor))}\\n{tensor.spec}"
            label = f"{op}{shown}{_escape(_on(homes, tensor))}"
            lines.append(f'  {self._dot_id(tensor)} [{style}, label="{label}"];')
        for tensor in self.nodes:
            dashed = tensor.op is not None and not tensor.op.computes
            for i, source in enumerate(tensor.src):
                style = ' [style=dashed, label="' if dashed else ' [label="'
                lines.append(f'  {self._dot_id(source)} -> {self._dot_id(tensor)}{style}{i}"];')
        return "\n".join([*lines, "}"])

    def _dot_id(self, tensor: Tensor) -> str:
        return f"{'leaf' if tensor.is_leaf else 'node'}_{self._index[tensor]}"

    def to_json(self, homes: Homes = NO_HOMES) -> str:
        """One object: `leafs` and `nodes`, each with name, type, ne, nb, flags; nodes have an op.

        What is in `homes` has `on`, the name of a backend or of memory. A source is written as
        `["node", 7]` or `["leaf", 3]`. Where runs set counts, `ne` has their bounds: `symbols`
        lists these by name, and tensors with such counts have `shape`, as text.
        """
        graph: dict[str, Any] = {
            "leafs": [self._json(t, homes) for t in self.leafs],
            "nodes": [self._json(t, homes) for t in self.nodes],
            "outputs": [self._json_ref(t) for t in self.outputs],
        }
        if self.symbols:
            graph["symbols"] = {s.name: s.bound for s in self.symbols}
        return json.dumps(graph)

    @checked
    def to_html(self, title: str = "graph", homes: Homes = NO_HOMES) -> str:
        """An interactive, self-contained page of HTML; `title` is its heading."""
        return to_html(self, title, homes)

    def _json(self, tensor: Tensor, homes: Homes) -> dict[str, Any]:
        described: dict[str, Any] = {
            "name": self.name_of(tensor),
            "type": tensor.type.name,
            "ne": tensor.ne,
            "nb": tensor.nb,
            "flags": _flag_names(tensor).split("|") if tensor.flags else [],
        }
        if has_counts(tensor.ne):
            described["shape"] = tensor.spec.shape_text
        if tensor.op is not None:
            described["op"] = tensor.op.name
            described["params"] = {k: _plain(v) for k, v in tensor.op.params().items()}
            described["src"] = [self._json_ref(s) for s in tensor.src]
        if tensor.view_src is not None:
            described["view_src"] = self._json_ref(tensor.view_src)
            described["view_offs"] = tensor.view_offs
        if tensor in homes:
            described["on"] = homes[tensor]
        return described

    def _json_ref(self, tensor: Tensor) -> tuple[str, int]:
        return ("leaf" if tensor.is_leaf else "node", self._index[tensor])


def _on(homes: Homes, tensor: Tensor) -> str:
    return f" on {homes[tensor]}" if tensor in homes else ""


def _flag_names(tensor: Tensor) -> str:
    return "|".join(f.name or "" for f in Flag if f in tensor.flags)


def _plain(value: Any) -> Any:
    """A parameter as JSON holds it; a type by its name."""
    return (
        value if isinstance(value, bool | int | float | str | None | list | tuple) else str(value)
    )


def _leaf_colour(tensor: Tensor) -> str:
    if Flag.WEIGHT in tensor.flags:
        return "lightblue"
    return "lightyellow" if Flag.STATE in tensor.flags else "lightgrey"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')

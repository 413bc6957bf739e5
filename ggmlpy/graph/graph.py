"""Compute graphs: all tensors that some outputs depend on, in running order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ggmlpy.common.arguments import checked
from ggmlpy.errors import ArgumentError
from ggmlpy.graph.tensor import Flag, Tensor, tensors_of

MAX_NAME_WIDTH = 36  # columns of a dump; longer names are not aligned
MAX_CYCLE_NAMES = 8  # of a cycle in an error

Homes = Mapping[Tensor, str]  # the backend that runs a node, the memory that a leaf lies in
NO_HOMES: Homes = MappingProxyType({})


class Graph:
    """The tensors reachable from `outputs`: `leafs` hold data, `nodes` are in running order.

    The order is ggml's: depth first, sources before the node, left to right, and outputs in the
    order given, one by one or as a list. So a write (set_rows, cpy) that a later output reads comes
    first if it is listed first. `to_text()`, which `print(graph)` writes, `to_dot()`, `to_json()`
    and `to_html()` dump it; with `homes` also the backends of nodes and the memory of leafs.
    Raises ArgumentError for an argument that is not a tensor, and for a cycle of sources.
    """

    def __init__(self, *outputs: Tensor | Sequence[Tensor]) -> None:
        self.outputs = tensors_of("Graph", outputs)
        self.leafs: list[Tensor] = []
        self.nodes: list[Tensor] = []
        self._index: dict[Tensor, int] = {}
        for tensor in _post_order(self.outputs):
            kept = self.leafs if tensor.is_leaf else self.nodes
            self._index[tensor] = len(kept)
            kept.append(tensor)

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.nodes)

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor in self._index

    def name_of(self, tensor: Tensor) -> str:
        """The tensor's name, or ggml's `node_7`, `leaf_3` where it has none."""
        kind = "leaf" if tensor.is_leaf else "node"
        return tensor.name or f"{kind}_{self._index[tensor]}"

    def reference(self, tensor: Tensor) -> str:
        """`node 7 Qcur-0`: its line in the dump, and its name if it has one."""
        kind = "leaf" if tensor.is_leaf else "node"
        return f"{kind} {self._index[tensor]} {tensor.name}".rstrip()

    def find(self, name: str) -> Tensor:
        """The tensor called `name` (the first, if several are). Raises KeyError."""
        for tensor in (*self.leafs, *self.nodes):
            if self.name_of(tensor) == name:
                return tensor
        raise KeyError(f"no tensor {name!r} among {len(self.leafs)} leafs and {len(self)} nodes")

    def __repr__(self) -> str:
        ends = ", ".join(self.name_of(t) for t in self.outputs[:3])
        more = ", …" if len(self.outputs) > 3 else ""
        return f"<Graph of {ends}{more}: {len(self.nodes)} nodes, {len(self.leafs)} leafs>"

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, homes: Homes = NO_HOMES) -> str:
        """One line per tensor. Sources have number and name, since names need not be unique."""
        lines = [f"graph: {len(self.nodes)} nodes, {len(self.leafs)} leafs"]
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
        `["node", 7]` or `["leaf", 3]`.
        """
        return json.dumps(
            {
                "leafs": [self._json(t, homes) for t in self.leafs],
                "nodes": [self._json(t, homes) for t in self.nodes],
                "outputs": [self._json_ref(t) for t in self.outputs],
            }
        )

    @checked
    def to_html(self, title: str = "graph", homes: Homes = NO_HOMES) -> str:
        """An interactive, self-contained page of HTML; `title` is its heading."""
        from ggmlpy.graph.html import to_html

        return to_html(self, title, homes)

    def _json(self, tensor: Tensor, homes: Homes) -> dict[str, Any]:
        described: dict[str, Any] = {
            "name": self.name_of(tensor),
            "type": tensor.type.name,
            "ne": tensor.ne,
            "nb": tensor.nb,
            "flags": _flag_names(tensor).split("|") if tensor.flags else [],
        }
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


def _post_order(outputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Depth first without recursion: a model's graph is deeper than Python's stack."""
    order: list[Tensor] = []
    finished: dict[Tensor, bool] = {}  # False while its sources are visited
    for output in outputs:
        stack = [(output, 0)]
        while stack:
            tensor, i = stack.pop()
            if i == 0:
                if tensor in finished:
                    if not finished[tensor]:
                        raise _cycle([above for above, _ in stack], tensor)
                    continue
                finished[tensor] = False
            if i < len(tensor.src):
                stack += [(tensor, i + 1), (tensor.src[i], 0)]
            else:
                finished[tensor] = True
                order.append(tensor)
    return order


def _cycle(path: list[Tensor], tensor: Tensor) -> ArgumentError:
    cycle = path[path.index(tensor) :]
    names = [t.name or (t.op.name if t.op is not None else "a leaf") for t in cycle]
    if len(names) > MAX_CYCLE_NAMES:
        names[MAX_CYCLE_NAMES // 2 : -MAX_CYCLE_NAMES // 2] = ["…"]
    shown = " from ".join([*names, names[0]])
    return ArgumentError(f"Graph: {shown}: a node must not be computed from its own result")


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

"""Programs: random graphs as short, readable lists of leaves and nodes, which go through JSON.

    [name, "leaf", [], {"type": "q8_0", "ne": [64, 5], "fill": "uniform", "seed": 7}]
    [name, "mul_mat", [source, source], {}]

A leaf's parameters besides type, ne, fill and seed:

    weight, state, input    its role in the graph: at most one of them is true
    limit, unique, entries  of indices (leaves.py)
    home                    1: a weight or state lies in memory of the second backend, if that has
                            memory of its own

    case, index             of the fill "case": a case's id and the number of the leaf in its graph

A node's parameters are those of the function, or of the op where its name begins with `=`. `pin` is
the number of the backend that runs it when there are several.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from ggmlpy import ops
from ggmlpy.errors import GgmlpyError
from ggmlpy.graph.op import OPS, Op
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import TensorType, type_of

LEAF = "leaf"
OF_OP = "="
# Ops of which some sources are keywords: how many are not, and the names of those.
_KEYWORDS = {"flash_attn_ext": (4, ("cells", "seen")), "ssm_conv": (2, ("taps",))}


@dataclass(frozen=True, slots=True)
class Node:
    """A leaf, or the call of an op's function."""

    name: str
    op: str
    sources: tuple[str | None, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_leaf(self) -> bool:
        return self.op == LEAF


@dataclass(frozen=True, slots=True)
class Program:
    """A graph: its nodes, sources first; the values that are wanted of it, in this order, or those
    that no other node reads; and how often it runs, each time with other inputs."""

    nodes: tuple[Node, ...]
    wanted: tuple[str, ...] = ()
    n_runs: int = 1

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Program:
        nodes = [Node(name, op, tuple(srcs), params) for name, op, srcs, params in content["nodes"]]
        return cls(tuple(nodes), tuple(content.get("wanted", ())), content.get("n_runs", 1))

    def to_json(self) -> dict[str, Any]:
        nodes = [[n.name, n.op, list(n.sources), dict(n.params)] for n in self.nodes]
        return {"nodes": nodes, "wanted": list(self.wanted), "n_runs": self.n_runs}

    def save(self, path: Path, **about: Any) -> None:
        """Write it as JSON, with what else is to be known of it. Makes the folder if need be."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**about, **self.to_json()}) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Program:
        return cls.from_json(json.loads(path.read_text(encoding="utf-8")))

    @property
    def n_nodes(self) -> int:
        """The nodes that are no leaves."""
        return sum(not node.is_leaf for node in self.nodes)

    def __str__(self) -> str:
        """A line per node, one in all for one or two nodes; leaves stand where they are read,
        those that are read several times in lines of their own."""
        n_readers = Counter(source for node in self.nodes for source in node.sources)
        shown: dict[str | None, str] = {None: "None"}
        lines = []
        for node in self.nodes:
            text = _leaf_text(node) if node.is_leaf else _call_text(node, shown)
            if node.is_leaf and n_readers[node.name] == 1:
                shown[node.name] = text
            else:
                shown[node.name] = node.name
                lines.append(f"{node.name} = {text}")
        if self.wanted:
            lines.append("-> " + ", ".join(self.wanted))
        if self.n_runs > 1:
            lines.append(f"{self.n_runs} runs")
        return ("; " if self.n_nodes <= 2 else "\n").join(lines)


def _leaf_text(node: Node) -> str:
    ne, seed = list(node.params["ne"]), node.params["seed"]
    while len(ne) > 1 and ne[-1] == 1:
        ne.pop()
    known = ("type", "ne", "fill", "seed", "case", "index")
    more = [k if v is True else f"{k}={v}" for k, v in node.params.items() if k not in known and v]
    fill = f"{node.params['fill']}#{seed}" if seed else node.params["fill"]
    return " ".join([f"{node.params['type']}[{','.join(map(str, ne))}]", fill, *more])


def _call_text(node: Node, shown: Mapping[str | None, str]) -> str:
    given = [shown.get(source, f"{source}?") for source in node.sources]
    given += [f"{k}={v}" for k, v in node.params.items() if k != "pin"]
    pin = "" if node.params.get("pin") is None else f" on {node.params['pin']}"
    return f"{node.op.removeprefix(OF_OP)}({', '.join(given)}){pin}"


def encoded(value: Any) -> Any:
    """A parameter of an op for JSON. Raises TypeError for one that has no place there."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, TensorType):
        return {"type": value.name}
    if isinstance(value, list | tuple):
        return [encoded(element) for element in value]
    if not isinstance(value, bool | int | float | str | None):
        raise TypeError(f"{value!r} does not go through JSON")
    return value


def _op(name: str, params: Mapping[str, Any]) -> Op:
    """The op of parameters that went through JSON."""
    kinds = _kinds(OPS[name])
    given = {}
    for key, value in params.items():
        kind = kinds.get(key)
        given[key] = _decoded(value) if kind is None else kind(value)
    return OPS[name](**given)


@cache
def _kinds(op: type[Op]) -> dict[str, type[Enum]]:
    """The parameters that are one of a few."""
    hints = get_type_hints(op).items()
    return {name: kind for name, kind in hints if isinstance(kind, type) and issubclass(kind, Enum)}


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return type_of(value["type"])
    return tuple(map(_decoded, value)) if isinstance(value, list) else value


def apply(op: str, sources: Sequence[Tensor | None], params: Mapping[str, Any]) -> Tensor:
    """The tensor of a call."""
    params = {name: value for name, value in params.items() if name != "pin"}
    if op.startswith(OF_OP):
        return _op(op.removeprefix(OF_OP), params).node(*[s for s in sources if s is not None])
    function: Callable[..., Tensor] = getattr(ops, op)
    n, names = _KEYWORDS.get(op, (len(sources), ()))
    named = dict(zip(names, sources[n:], strict=False))
    return function(*sources[:n], **named, **params)


def build(program: Program, leaf: Callable[[Node], Tensor]) -> dict[str, Tensor]:
    """The tensors by name, over leaves that `leaf` makes. What lacks a source, or is refused, is
    left out."""
    tensors: dict[str, Tensor] = {}
    known: set[Tensor] = set()
    for node in program.nodes:
        if node.is_leaf:
            tensors[node.name] = leaf(node)
        elif all(source is None or source in tensors for source in node.sources):
            given = [None if source is None else tensors[source] for source in node.sources]
            try:
                made = apply(node.op, given, node.params)
            except GgmlpyError:
                continue
            if made not in known:  # else one that was given its sinks
                made.name = node.name
            known.add(made)
            tensors[node.name] = made
    return tensors


def wanted(program: Program, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The wanted tensors that exist; if there are none, the nodes that no other reads."""
    found = [tensors[name] for name in program.wanted if name in tensors]
    if not found:
        read = {source for tensor in tensors.values() for source in tensor.src}
        found = [t for t in tensors.values() if not t.is_leaf and t not in read]
    return list(dict.fromkeys(found))

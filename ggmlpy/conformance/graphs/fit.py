"""A program on given backends: which of them run its nodes, and in whose memory leaves lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ggmlpy.backends.base import Backend
from ggmlpy.conformance.graphs.leaves import placeless_leaf
from ggmlpy.conformance.graphs.program import LEAF, Node, Program, build
from ggmlpy.graph.buffer import HOST, BufferType
from ggmlpy.graph.tensor import Flag, Tensor


def home_of(node: Node, backends: Sequence[Backend]) -> BufferType:
    """The memory in which a leaf lies."""
    home = node.params.get("home", 0)
    if node.params.get("state") or (node.params.get("weight") and home):
        memory: BufferType = backends[home % len(backends)].buffer_type
        return memory
    return HOST


def pins_of(
    program: Program, tensors: Mapping[str, Tensor], backends: Sequence[Backend]
) -> dict[Tensor, str]:
    """Names of backends for nodes with a pin. One that writes into state runs where that lies; one
    that its backend does not support, on another."""
    pins = {}
    for node in program.nodes:
        tensor, pin = tensors.get(node.name), node.params.get("pin")
        if tensor is None or tensor.op is None or not tensor.op.computes:
            continue
        if Flag.STATE in tensor.root.flags:
            at = tensor.root.place
            assert at is not None
            memory = at.buffer.type
            pins[tensor] = next(b.name for b in backends if b.supports_buffer_type(memory))
        elif pin is not None:
            first = backends[pin % len(backends)]
            able = next(b for b in (first, *backends) if b.supports(tensor))
            pins[tensor] = able.name
    return pins


def fitted(program: Program, backends: Sequence[Backend]) -> tuple[Program, int]:
    """The program for these backends, and how many of its nodes none of them supports: leaves take
    their places. State that its home cannot write lies in memory of the first backend."""
    tensors = build(program, placeless_leaf)
    homes = {node.name: node.params.get("home", 0) for node in program.nodes}
    nodes: list[Node] = []
    n_left_out = 0
    homeless: set[str] = set()
    known: set[Tensor] = set()
    for node in program.nodes:
        tensor = tensors.get(node.name)
        new = [] if tensor is None or node.is_leaf else _new_nodes(tensor, known)
        known.update(new)
        supported = True
        for made in filter(_computes, new):
            able = [backend for backend in backends if backend.supports(made)]
            if _writes_state(made):
                state = made.root.name
                if backends[homes[state] % len(backends)] not in able:
                    homeless.add(state)
                    supported &= backends[0] in able
            supported &= bool(able)
        if not supported:
            n_left_out += 1
        nodes.append(node if supported or tensor is None else _in_place_of(node, tensor))
    if n_left_out or homeless:
        program = replace(program, nodes=tuple(_at_home(n, homeless) for n in nodes))
    return program, n_left_out


def _new_nodes(tensor: Tensor, known: set[Tensor]) -> list[Tensor]:
    """The nodes that a call has made: the result, and others before it."""
    found: dict[Tensor, None] = {}
    stack = [tensor]
    while stack:
        node = stack.pop()
        if node in known or node in found or node.is_leaf:
            continue
        found[node] = None
        stack += node.src
    return list(found)


def _computes(node: Tensor) -> bool:
    return node.op is not None and node.op.computes


def _writes_state(node: Tensor) -> bool:
    return _computes(node) and node.root is not node and Flag.STATE in node.root.flags


def _in_place_of(node: Node, tensor: Tensor) -> Node:
    """A leaf like the result of a node."""
    name = tensor.type.name
    params: dict[str, Any] = {"type": name, "ne": list(tensor.ne), "fill": "uniform", "seed": 1}
    if not tensor.type.is_float:
        params |= {"fill": "ids", "limit": 1}
    return Node(node.name, LEAF, (), params)


def _at_home(node: Node, homeless: Iterable[str]) -> Node:
    if not node.is_leaf or node.name not in homeless:
        return node
    return replace(node, params={k: v for k, v in node.params.items() if k != "home"})

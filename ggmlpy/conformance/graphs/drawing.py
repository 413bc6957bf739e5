"""A program under way: nodes are added one by one, each built as it is drawn.

Shapes come from building; what is refused is drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from ggmlpy.conformance.cases.sizes import FLOATS, QUANTIZED
from ggmlpy.conformance.graphs.leaves import placeless_leaf
from ggmlpy.conformance.graphs.program import LEAF, Node, Program, apply
from ggmlpy.errors import GgmlpyError
from ggmlpy.graph.tensor import Flag, Tensor
from ggmlpy.graph.types import F32
from ggmlpy.sched.writes import share_memory

MAX_NODES = 40
ROWS = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 48, 64, 65, 96, 128, 256)
FEW = (1, 1, 1, 2, 3, 4, 5, 7)
_MOST = 6_000  # elements of a tensor
_PINS = 6  # any of two or three backends
_LARGE = ("q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_xs", "tq1_0", "tq2_0", "iq1_s", "iq1_m",
          "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "q1_0", "q2_0")  # fmt: skip
_SMALL = tuple(t for t in QUANTIZED if t not in _LARGE and t != "nvfp4")

Fits = Callable[[Tensor], bool]


class Refused(GgmlpyError):
    """Too large, or nothing fits: draw something else."""


def is_f32(tensor: Tensor) -> bool:
    return tensor.type is F32


def is_float(tensor: Tensor) -> bool:
    return tensor.type.name in FLOATS


class Drawing:
    """A program under way: its nodes, and its tensors by name."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}
        self.wanted: list[str] = []  # beside those that nothing reads
        self.readers: dict[str, int] = {}  # how many nodes read a value
        # Most programs have ordinary values only: what NaN and infinity reach is judged less.
        self.fills: tuple[str, ...] = ("uniform",) * 6 + ("normal", "normal", "sparse", "ties")
        if rng.random() < 0.15:
            self.fills += ("special", "special")

    @property
    def n_nodes(self) -> int:
        return sum(not node.is_leaf for node in self.nodes)

    def leaf(self, type: str, ne: tuple[int, ...], fill: str = "", **more: Any) -> str:
        """A new leaf; most are uniform in -1 to 1. Raises Refused for a large one."""
        if prod(ne) > 4 * _MOST:
            raise Refused
        params: dict[str, Any] = {
            "type": type,
            "ne": list(ne),
            "fill": fill or self.rng.choice(self.fills),
        }
        params["seed"] = self.rng.randrange(1000)
        if more.get("weight") or more.get("state"):
            params["home"] = self.rng.choice((0, 0, 1, 2))
        elif self.rng.random() < 0.5:
            params["input"] = True
        name = f"x{len(self.nodes)}"
        node = Node(name, LEAF, (), {**params, **more})
        self.nodes.append(node)
        self.tensors[name] = placeless_leaf(node)
        return name

    def add(self, op: str, sources: list[str | None], /, **params: Any) -> str:
        """A new node. Raises GgmlpyError where it cannot be."""
        if self.n_nodes == MAX_NODES:
            raise Refused
        name = f"t{len(self.nodes)}"
        made = apply(op, [None if s is None else self.tensors[s] for s in sources], params)
        if prod(made.ne) > _MOST or not _may_write(made):
            raise Refused
        self.tensors[name] = made
        self.nodes.append(Node(name, op, tuple(sources), params))
        for source in sources:
            if source is not None:
                self.readers[source] = self.readers.get(source, 0) + 1
        return name

    def want(self, name: str) -> None:
        """Keep a value to the end."""
        self.wanted.append(name)

    def pick(self, fits: Fits = is_f32) -> str:
        """A tensor that fits, the latest ones rather; a new f32 leaf if none does."""
        known = [n for n, t in self.tensors.items() if fits(t)]
        if known and self.rng.random() < 0.88:
            return self.rng.choice(known if self.rng.random() < 0.3 else known[-4:])
        name = self.leaf("f32", self.ne())
        if not fits(self.tensors[name]):
            raise Refused
        return name

    def like(self, x: str) -> str:
        """Another f32 tensor of x's shape: one that is known, or a leaf."""
        ne = self.tensors[x].ne
        known = [n for n, t in self.tensors.items() if n != x and t.ne == ne and is_f32(t)]
        return self.rng.choice(known) if known and self.chance(0.6) else self.leaf("f32", ne)

    def ne(self) -> tuple[int, ...]:
        """A shape of one to four dimensions."""
        rng = self.rng
        return (rng.choice(ROWS), *(rng.choice(FEW) for _ in range(rng.choice((0, 1, 1, 2, 3)))))

    def type_for(self, n: int) -> str:
        """A type whose rows may have n elements."""
        kinds: list[tuple[str, ...]] = [FLOATS]
        kinds += [_SMALL, _SMALL] if n % 32 == 0 else []
        kinds += [(*_LARGE, "nvfp4"), _LARGE] if n % 256 == 0 else []
        return self.rng.choice(self.rng.choice(kinds))

    def divisor(self, n: int) -> int:
        return self.rng.choice([k for k in (1, 2, 3, 5, 7) if n % k == 0])

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def program(self) -> Program:
        """What was drawn: wanted are some of the values that nothing reads and some others; one in
        three runs several times; nodes of one in two have pins."""
        rng = self.rng
        ends = [n.name for n in self.nodes if not n.is_leaf and n.name not in self.readers]
        if len(ends) > 2 and self.chance(0.3):
            ends = sorted(rng.sample(ends, len(ends) - 1), key=ends.index)
        middle = [n.name for n in self.nodes if not n.is_leaf and n.name in self.readers]
        wanted = ends + self.wanted + (rng.sample(middle, 1) if middle and self.chance(0.3) else [])
        if self.chance(0.3):
            rng.shuffle(wanted)
        program = Program(tuple(self.nodes), tuple(dict.fromkeys(wanted)), rng.choice((1, 1, 2, 3)))
        return _pinned(program, rng)


def _may_write(node: Tensor) -> bool:
    """Whether a node that writes into a source may run: that is no weight and not what it reads."""
    assert node.op is not None
    target = node.op.view_of
    if not node.op.computes or target is None:
        return True
    if Flag.WEIGHT in node.root.flags:
        return False
    return not any(share_memory(s, node) for i, s in enumerate(node.src) if i != target)


def _pinned(program: Program, rng: random.Random) -> Program:
    """Pins for some, none, or stretches of the nodes."""
    how = rng.choice(("none", "some", "all", "stretches"))
    if how == "none":
        return program
    now: int | None = rng.randrange(_PINS)
    nodes = []
    for node in program.nodes:
        if not node.is_leaf:
            if how == "stretches":
                now = rng.choice((0, 1, 2, None)) if rng.random() < 0.25 else now
            else:
                now = rng.randrange(_PINS) if how == "all" or rng.random() < 0.5 else None
            if now is not None:
                node = replace(node, params={**node.params, "pin": now})
        nodes.append(node)
    return replace(program, nodes=tuple(nodes))

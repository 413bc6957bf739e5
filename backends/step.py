"""What a backend runs at once: one computing node, or several that a pass made one.

    Step.of(product)     mul_mat              operands weight, x            result y
    a fused step         rms_norm+mul         operands x, weight            result y
                         add+rms_norm+mul     operands a, b, weight         results y, sum

A step says what is computed, not how: its results have the bits that its nodes give one after
another. `ggmlpy/sched/fusion.py` lists the fused ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ggmlpy.graph.tensor import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Nodes that follow each other in a split, as one.

    op         the names of their ops, joined: `mul_mat`, `rms_norm+mul`
    node       the one whose op's parameters are the step's, and which errors name
    nodes      all that it computes, in running order
    operands   what it reads from memory, by name; of a single node as the op's shape rule says
    results    what it writes to memory, by name: "y", and others that are read after it
    params     parameters beside those of `node`'s op
    in_place   by result: operands that it may be written over, where they have its type, shape and
               strides: row i (along ne0) of a result is computed from row i of them

    Nodes that are no results have no memory: nothing but the step reads their values. Other than by
    `in_place` results share no memory with operands, except for the one that a write goes into, nor
    with each other.
    """

    node: Tensor
    nodes: tuple[Tensor, ...]
    operands: Mapping[str, Tensor]
    results: Mapping[str, Tensor]
    params: Mapping[str, float] = field(default_factory=dict)
    in_place: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    op: str = field(init=False)

    def __post_init__(self) -> None:
        names = [node.op.name for node in self.nodes if node.op is not None]
        object.__setattr__(self, "op", "+".join(names))

    @classmethod
    def of(cls, node: Tensor) -> Step:
        """A node by itself."""
        assert node.op is not None
        names = node.op.source_names(len(node.src))
        operands = dict(zip(names, node.src, strict=True))
        in_place = {"y": names[:1]} if node.op.in_place else {}
        return cls(node, (node,), operands, {"y": node}, in_place=in_place)

    @property
    def is_fused(self) -> bool:
        return len(self.nodes) > 1

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What it reads from memory and writes to it."""
        return (*self.operands.values(), *self.results.values())

    @property
    def interior(self) -> tuple[Tensor, ...]:
        """Nodes that it computes and that have no memory."""
        return tuple(node for node in self.nodes if node not in self.results.values())

    def __repr__(self) -> str:
        return f"<step {self.op}: {', '.join(node.name or 'node' for node in self.nodes)}>"

"""Steps, the units of work of a backend: a computing node, or several that a pass has fused.

    Step.of(product)     mul_mat              operands weight, x            result y
    a fused step         rms_norm+mul         operands x, weight            result y
                         add+rms_norm+mul     operands a, b, weight         results y, sum

The results of a fused step have the same bits as those of its nodes run one by one.
`ggmlpy/sched/fusion.py` lists the fused steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ggmlpy.graph.tensor import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Consecutive nodes of a split that run as one unit.

    op         names of the nodes' ops, joined by +: `mul_mat`, `rms_norm+mul`
    node       the node whose op has the parameters, and which errors name
    nodes      all nodes that the step computes, in running order
    operands   tensors that it reads from memory, by name; of a single node by the names in the
               op's shape rule
    results    tensors that it writes to memory, by name: "y", and others that are read after it
    params     parameters in addition to those of `node`'s op
    in_place   for each result the operands that it may overwrite if they have its type, shape and
               strides: row i (along ne0) of the result reads no other row of them
    updates    for results in another tensor's memory the operands there that the step reads as they
               are before it writes

    Nodes that are not results have no memory, and only the step reads their values. Results share
    no memory with each other, nor with operands, except as `in_place` allows and for the operand
    that set_rows or cpy writes into.
    """

    node: Tensor
    nodes: tuple[Tensor, ...]
    operands: Mapping[str, Tensor]
    results: Mapping[str, Tensor]
    params: Mapping[str, float] = field(default_factory=dict)
    in_place: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    updates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    op: str = field(init=False)

    def __post_init__(self) -> None:
        names = [node.op.name for node in self.nodes if node.op is not None]
        object.__setattr__(self, "op", "+".join(names))

    @classmethod
    def of(cls, node: Tensor) -> Step:
        """The step of a single node."""
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
        """Operands and results."""
        return (*self.operands.values(), *self.results.values())

    @property
    def interior(self) -> tuple[Tensor, ...]:
        """Nodes that are not results, and so have no memory."""
        return tuple(node for node in self.nodes if node not in self.results.values())

    def __repr__(self) -> str:
        return f"<step {self.op}: {', '.join(node.name or 'node' for node in self.nodes)}>"

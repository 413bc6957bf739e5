"""What one record of a plan does: a node, or several that a fusion made one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ggmlpy.backends.cpu.kernel import Kernel
from ggmlpy.graph.tensor import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Nodes that follow each other, and the kernel that runs them together.

    `node` is the one whose parameters the record has, which `bind` is asked about, and which errors
    name. Where several became one, `operands` tells what is in the kernel's TENSOR fields,
    `values` other fields, and `results` the nodes whose values are still written.
    """

    kernel: Kernel
    node: Tensor
    nodes: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    operands: Mapping[str, Tensor] | None = None  # None: as the op of `node` names its sources
    values: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, kernel: Kernel, node: Tensor) -> Step:
        """A node by itself."""
        return cls(kernel, node, (node,), (node,))

    @property
    def is_fused(self) -> bool:
        return len(self.nodes) > 1

    def operand(self, field: str) -> Tensor:
        """What a fused step has in a TENSOR field."""
        assert self.operands is not None
        return self.operands[field]

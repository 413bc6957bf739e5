"""What a context is made of, decided once for a model and its encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ggmlpy.backends.base import Backend
from ggmlpy.graph.types import TensorType
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.sizes import Sizes
from ggmlpy.models import Model
from ggmlpy.runtime.plans import PlanCache
from ggmlpy.runtime.shape import Shapes
from ggmlpy.sched.assignment import Pin
from ggmlpy.sched.placement import Placement


@dataclass(frozen=True, slots=True)
class ContextSetup:
    """Options that hold for a context and that of its encoder."""

    backends: list[Backend]
    sizes: Sizes
    placement: Placement
    type_k: TensorType
    type_v: TensorType
    kv_rotation: bool | None
    flash_attn: bool
    pin: Pin | None
    passes: str | Sequence[str] | None

    def memory(self, model: Model, source: SequenceMemory | None) -> SequenceMemory:
        """The memory of a model's sequences, whose sources lie in `source`."""
        types = self.placement.buffer_types(model.memory)
        return SequenceMemory(
            model.memory, self.sizes, self.type_k, self.type_v, types, self.kv_rotation, source
        )

    def shapes(self, memory: SequenceMemory) -> Shapes:
        """The shapes of graphs that serve any batch."""
        return Shapes(memory, self.flash_attn, all(b.takes_counts for b in self.backends))

    def plans(self, model: Model, memory: SequenceMemory, embeddings: bool) -> PlanCache:
        """The plans of those graphs, none yet."""
        return PlanCache(model, memory, self.backends, self.pin, self.passes, embeddings)

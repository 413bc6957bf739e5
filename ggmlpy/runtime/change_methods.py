"""The methods of `Context` for what changes a model: LoRA adapters and control vectors."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING

from ggmlpy.backends.base import Weight
from ggmlpy.common.quoting import quoted, quoted_list
from ggmlpy.errors import Unsupported
from ggmlpy.graph.graph import Graph
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.state import Changes
from ggmlpy.models import Model
from ggmlpy.models.control_vector import ControlVector
from ggmlpy.models.lora import LoraAdapter, open_lora
from ggmlpy.runtime.lora import (
    LoraShape,
    Scales,
    SequenceAdapters,
    changes_of,
    load_lora_weights,
    scales_of,
)
from ggmlpy.runtime.plans import Plan, PlanCache
from ggmlpy.runtime.shape import Shapes
from ggmlpy.runtime.steady import SteadyStep
from ggmlpy.sched.placement import Placement


class ChangeMethods:
    """A context whose sequences can have adapters."""

    model: Model
    encoder: ChangeMethods | None  # the context of the encoder
    memory: SequenceMemory
    placement: Placement
    plans: PlanCache
    shapes: Shapes
    _adapters: SequenceAdapters
    _control: ControlVector | None = None
    _last: Plan | None
    _last_graph: Graph | None
    _steady: SteadyStep | None

    if TYPE_CHECKING:

        def load_weights(self) -> None:
            """See `Context`."""

    def load_lora(self, path: str | bytes | PathLike[str], *, scale: float = 1.0) -> LoraAdapter:
        """Load the LoRA adapter of a file, for `set_lora` of this context and others of its model.

        `scale` is kept as the adapter's. Raises FileError for a file that cannot be read,
        WeightError for one that is no adapter or does not fit the model, Unsupported for one that
        changes a tensor whose product cannot have it.
        """
        adapter = self.open_lora(path, scale)
        try:
            self.add_lora(adapter)
        except BaseException:
            adapter.close()
            raise
        return adapter

    def open_lora(self, path: str | bytes | PathLike[str], scale: float = 1.0) -> LoraAdapter:
        """The first half of `load_lora`, which reads the file and changes nothing."""
        return open_lora(path, self.model.weights, self.model.hparams.architecture, scale)

    def add_lora(self, adapter: LoraAdapter) -> None:
        """The second half: load the weights onto their devices."""
        self._check_lora(adapter)
        self.load_weights()
        load_lora_weights(adapter, self.placement)

    def _check_lora(self, adapter: LoraAdapter) -> None:
        """Raise Unsupported unless the graphs have all that an adapter changes."""
        changed = self._changed_by(adapter)
        if self.encoder is not None:
            changed |= self.encoder._changed_by(adapter)
        left = [w.name for w in adapter.weights.values() if w.name not in changed]
        if left:
            raise Unsupported(
                f"{adapter.name}: the adapter changes {quoted_list(left)}: products of the"
                f" architecture {quoted(self.model.hparams.architecture)} with these cannot have an"
                " adapter"
            )

    def _changed_by(self, adapter: LoraAdapter) -> set[str]:
        changed: set[str] = set()
        for shape in self.shapes.largest():
            some = LoraShape(adapter, shape.n_tokens, shape.n_outputs)
            whole = LoraShape(adapter)
            lora = (some if shape.n_tokens > 1 else whole,)
            changed |= self.plans.weights_changed_by(adapter, shape.having(lora))
        return changed

    def set_lora(self, adapters: Mapping[LoraAdapter, float], *, seq: int) -> None:
        """Let the tokens of a sequence that are run from now on have adapters, each with its scale.

        What the memory holds of the sequence stays as it is. Raises ArgumentError for a sequence
        that does not exist, or a scale that is not finite.
        """
        self.memory.check_seq(seq)
        self.use_lora(seq, scales_of(adapters))

    def use_lora(self, seq: int, scales: Scales) -> None:
        """`set_lora` of what `scales_of` gave."""
        if self._adapters.set(seq, scales):
            self._steady = None
        if self.encoder is not None:
            self.encoder.use_lora(seq, scales)

    def changes_of(self, scales: Scales) -> Changes:
        """What a sequence's K and V depend on, of adapters and of the control vector."""
        control = self._control
        changes = changes_of(scales)
        return changes if control is None else ((control.digest, 1.0), *changes)

    @property
    def control_vector(self) -> ControlVector | None:
        """What `set_control_vector` has set."""
        return self._control

    def set_control_vector(self, vector: ControlVector | None) -> None:
        """Let layers add the directions of a control vector from now on; None: none.

        What the memory holds stays as it is. Raises Unsupported for an architecture whose layers
        cannot have one.
        """
        directions = {} if vector is None else vector.directions
        shape = self.shapes.largest()[0]
        if self.encoder is not None and vector is not None:
            raise Unsupported("a model with an encoder and a decoder cannot have a control vector")
        if set(directions) - self.plans.layers_steered_by(directions, shape):
            arch = quoted(self.model.hparams.architecture)
            raise Unsupported(f"layers of the architecture {arch} cannot have a control vector")
        self.load_weights()
        for layer, leaf in directions.items():
            backend = self.placement.backend_of(f"blk.{layer}.{leaf.name}")
            backend.load_weights([Weight(leaf, frozenset(("add",)))])
        self._control = vector
        self.plans.steer(directions)
        self.plans.get(self.shapes.one_token)  # as `warm_up` does
        self._steady = self._last = None

    def unload_lora(self, adapter: LoraAdapter) -> None:
        """Give back the memory of an adapter, which no sequence has from now on."""
        for seq in self._adapters.uses(adapter):
            self._adapters.set(seq, ())
        self.plans.drop(adapter)
        self._steady = self._last = self._last_graph = None
        if self.encoder is not None:
            self.encoder.unload_lora(adapter)

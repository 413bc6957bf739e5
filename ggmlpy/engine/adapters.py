"""The LoRA adapters that are loaded, by number, and those that a request asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ggmlpy.common.arguments import WrongKind, as_float, kind_of
from ggmlpy.engine.options import LoraScales
from ggmlpy.errors import ArgumentError
from ggmlpy.models.lora import LoraAdapter
from ggmlpy.runtime.lora import Scales, scales_of


class Adapters:
    """The adapters of an engine. Numbers count up from 0, and are not given twice."""

    def __init__(self) -> None:
        self.by_id: dict[int, LoraAdapter] = {}  # replaced, not changed: other threads read it
        self._n_loaded = 0

    def add(self, adapter: LoraAdapter) -> None:
        """Add one that the context has loaded."""
        self.by_id = {**self.by_id, self._n_loaded: adapter}
        self._n_loaded += 1

    def remove(self, adapter: LoraAdapter) -> None:
        """Remove one. Raises ArgumentError if it is not loaded."""
        gone, _ = self._found(adapter)
        self.by_id = {id: each for id, each in self.by_id.items() if id != gone}

    def close(self) -> None:
        """Close the files of all."""
        held, self.by_id = self.by_id, {}
        for adapter in held.values():
            adapter.close()

    def scales(self, lora: LoraScales | None = None) -> Scales:
        """The adapters that a request has: those named, or else all, each with its own scale.

        Raises ArgumentError for one that is not loaded, or a scale that is not finite.
        """
        scales: dict[LoraAdapter, float] = {}
        own = ((adapter, adapter.scale) for adapter in self.by_id.values())
        for key, scale in own if lora is None else _pairs(lora):
            _, adapter = self._found(key)
            if adapter in scales:
                raise ArgumentError(f"lora: {adapter.name} is named twice")
            try:
                scales[adapter] = as_float(scale)
            except WrongKind as wrong:
                raise ArgumentError(
                    f"lora: the scale of {adapter.name} is {kind_of(scale)}: it must be {wrong}"
                ) from None
        return scales_of(scales)

    def _found(self, key: object) -> tuple[int, LoraAdapter]:
        for id, adapter in self.by_id.items():
            if adapter is key or (type(key) is int and id == key):
                return id, adapter
        loaded = ", ".join(f"{id}: {a.name}" for id, a in self.by_id.items()) or "none"
        raise ArgumentError(f"lora: no adapter {key!r:.60} is loaded; loaded are {loaded}")


def _pairs(lora: Any) -> Iterable[tuple[object, object]]:
    """Adapters or their numbers, and scales. Raises ArgumentError."""
    if isinstance(lora, Mapping):
        return lora.items()
    if isinstance(lora, Sequence) and all(
        isinstance(part, Mapping) and part.keys() == {"id", "scale"} for part in lora
    ):
        return [(part["id"], part["scale"]) for part in lora]
    raise ArgumentError(
        f"lora is {lora!r:.60}: it must be a dict of adapters and scales, or a list of"
        ' {"id": …, "scale": …}'
    )

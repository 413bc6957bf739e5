"""The methods of `Llama` that change the model: LoRA adapters and control vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from os import PathLike

from ggmlpy.common.arguments import WrongKind, as_float, checked, refusal
from ggmlpy.engine.token_methods import TokenMethods
from ggmlpy.errors import ArgumentError
from ggmlpy.models.control_vector import open_control_vectors
from ggmlpy.models.lora import LoraAdapter

File = str | bytes | PathLike[str]
AdapterFiles = Sequence[File | tuple[File, float]]


class AdapterMethods(TokenMethods):
    """A model to which LoRA adapters and control vectors can be added while it is in use."""

    @property
    def lora_adapters(self) -> dict[int, LoraAdapter]:
        """The adapters that are loaded, by number."""
        return dict(self.engine.adapters.by_id)

    @checked
    def load_lora(self, path: File, scale: float = 1.0) -> LoraAdapter:
        """Load a LoRA adapter from a GGUF file, as llama.cpp's convert_lora_to_gguf.py makes them.

        From then on requests have it with this `scale`, unless they say otherwise: with
        `lora={adapter: 0.5}` another one and no other adapter, with `lora={}` none. A scale of 0
        makes it one for those that name it only. Requests with different adapters run together;
        each gets what it would get alone. Its weights keep the file's types, on the devices of
        those that they change.

        Raises FileError for a file that cannot be read, WeightError for one that is no adapter or
        does not fit the model, Unsupported for one of another kind, or of a tensor whose product
        cannot have an adapter in this architecture, ArgumentError for a scale that is not finite,
        GgmlpyError during a step, as in a logits_processor.
        """
        self._check_open()
        if not math.isfinite(scale):
            raise ArgumentError(f"load_lora: scale is {scale}: it must be finite")
        context = self.engine.context
        adapter = context.open_lora(path, scale)  # outside the lock, so that others can generate
        try:
            with self._answers.exclusive():
                self.engine.check_idle_step()
                context.add_lora(adapter)
                self.engine.adapters.add(adapter)
        except BaseException:
            adapter.close()
            raise
        return adapter

    @checked
    def unload_lora(self, adapter: LoraAdapter) -> None:
        """Give back the memory of an adapter. What was generated with it is not reused from then
        on, unless it is loaded again.

        Raises ArgumentError if it is not loaded, GgmlpyError while requests that have it run.
        """
        self._check_open()
        with self._answers.exclusive():
            self.engine.check_idle_step()
            self.engine.unload_lora(adapter)
            if self._embedder is not None:
                self._embedder.unload_lora(adapter)
            adapter.close()

    @checked
    def set_control_vectors(
        self, files: AdapterFiles, layer_range: tuple[int, int] | None = None
    ) -> None:
        """Let all that is run from now on have the sum of control vectors, in place of those that
        it had.

        files        GGUF files of llama.cpp's cvector-generator, or of each (file, scale); none: no
                     control vector
        layer_range  the first and the last layer that have it; None: all but layer 0

        Results do not depend on what was run before: its K and V are reused with the same vectors
        only. Raises FileError for a file that cannot be read, WeightError for one that is no
        control vector or does not fit the model, Unsupported for an architecture whose layers
        cannot have one, ArgumentError for a range without layers, GgmlpyError while requests run.
        """
        self._check_open()
        pairs = with_scales("set_control_vectors", files)
        hparams = self.engine.context.model.hparams
        vector = open_control_vectors(pairs, hparams, layer_range)
        with self._answers.exclusive():
            self.engine.check_idle_step()
            self.engine.set_control_vector(vector)


def with_scales(name: str, files: AdapterFiles) -> list[tuple[File, float]]:
    """Files with the scale of each. Raises ArgumentError for one that is no finite number."""
    found: list[tuple[File, float]] = []
    for part in files:
        path, scale = part if isinstance(part, tuple) else (part, 1.0)
        try:
            number = as_float(scale)
        except WrongKind as wrong:
            raise refusal("Llama", f"{name}: the scale of {path!r}", wrong) from None
        if not math.isfinite(number):
            raise ArgumentError(f"{name}: the scale of {path!r} is {number}: it must be finite")
        found.append((path, number))
    return found

"""Opens contexts of a model: chooses their sizes, and where layers lie, by the memory there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from warnings import catch_warnings, simplefilter

from ggmlpy.backends.base import Backend
from ggmlpy.errors import AllocationError, ArgumentError
from ggmlpy.graph.buffer import BufferType
from ggmlpy.graph.types import TensorType
from ggmlpy.memory.sizes import Sizes
from ggmlpy.models import Model, whole_memory
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.context_sizes import reduce_to_memory
from ggmlpy.runtime.fit import Fit, find_fit
from ggmlpy.sched.placement import ALL, Placement, PlacementWarning


@dataclass(frozen=True, slots=True)
class ContextOpener:
    """The options that all contexts of a loaded model have in common."""

    model: Model
    backends: Sequence[Backend]
    sizes: Sizes
    type_k: TensorType
    type_v: TensorType
    kv_rotation: bool | None
    flash_attn: bool
    n_gpu_layers: int
    override_tensors: Mapping[str, str]
    free: Mapping[BufferType, int]  # bytes of devices, before anything was taken
    fitted: Fit | None = None  # what `fit` chose

    def fit(self, *, n_ctx_is_given: bool) -> ContextOpener:
        """With sizes and a number of layers on devices that fit their free memory, if any device
        says how much it has.

        Raises ArgumentError where the number is given, AllocationError where nothing fits.
        """
        if self.n_gpu_layers != ALL:
            raise ArgumentError(
                f"fit chooses n_gpu_layers, which is {self.n_gpu_layers}: give one of the two"
            )
        fitted = self._find_fit(n_ctx_is_given=n_ctx_is_given)
        if fitted is None:
            return self
        return replace(self, sizes=fitted.sizes, n_gpu_layers=fitted.n_gpu_layers, fitted=fitted)

    def reduce(self) -> ContextOpener:
        """With a context that takes at most half of the machine's memory."""
        model = self.model
        with catch_warnings():  # the context issues those of the placement
            simplefilter("ignore", PlacementWarning)
            placement = Placement.for_model(
                model, self.backends, self.n_gpu_layers, self.override_tensors
            )
        memory = whole_memory(model)
        lie = placement.buffer_types(memory)
        sizes = reduce_to_memory(
            memory, self.sizes, self.type_k, self.type_v, lie, self.kv_rotation
        )
        return replace(self, sizes=sizes)

    def open(self) -> Context:
        """The context that generates text. Raises AllocationError, with what would fit."""
        sizes = self.sizes
        try:
            return self._open(
                self.model, n_ctx=sizes.n_ctx, n_seq_max=sizes.n_seq_max, kv_layout=sizes.layout
            )
        except MemoryError as error:
            raise _no_cache(sizes.n_ctx, error, self._would_fit()) from None

    def open_for_embeddings(self, n_seq_max: int) -> Context:
        """A context that gives embeddings of up to `n_seq_max` texts. Raises AllocationError."""
        n_ctx = max(self.sizes.n_ctx_seq, self.sizes.n_ubatch)
        try:
            return self._open(
                self.model.encoder or self.model,
                n_ctx=n_ctx,
                n_seq_max=n_seq_max,
                kv_layout="unified",
                embeddings=True,
            )
        except MemoryError as error:
            raise _no_cache(n_ctx, error) from None

    @contextmanager
    def tells_what_fits(self) -> Iterator[None]:
        """An AllocationError of the block ends with what would fit, where devices say so."""
        try:
            yield
        except AllocationError as error:
            hint = self._would_fit()
            if not hint:
                raise
            raise AllocationError(f"{error}{hint}") from None

    def _open(self, model: Model, **options: Any) -> Context:
        return Context(
            model,
            self.backends,
            n_ctx_seq=self.sizes.n_ctx_seq,
            n_ubatch=self.sizes.n_ubatch,
            type_k=self.type_k,
            type_v=self.type_v,
            kv_rotation=self.kv_rotation,
            flash_attn=self.flash_attn,
            n_gpu_layers=self.n_gpu_layers,
            override_tensors=self.override_tensors,
            **options,
        )

    def _find_fit(self, *, n_ctx_is_given: bool) -> Fit | None:
        return find_fit(
            self.model,
            self.backends,
            self.sizes,
            self.type_k,
            self.type_v,
            n_ctx_is_given=n_ctx_is_given,
            overrides=self.override_tensors,
            flash_attn=self.flash_attn,
            kv_rotation=self.kv_rotation,
            free=self.free,
        )

    def _would_fit(self) -> str:
        """The end of an error of memory of a device."""
        if not self.free:
            return ""
        try:
            fits = self._find_fit(n_ctx_is_given=False)
        except AllocationError:
            return ""
        return f"; what fits is {fits} (fit=True or --fit chooses that)"


def _no_cache(n_ctx: int, error: MemoryError, hint: str = "") -> AllocationError:
    return AllocationError(
        f"a KV cache for n_ctx = {n_ctx} tokens: {error}; use a smaller n_ctx{hint}"
    )

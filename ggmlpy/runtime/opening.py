"""Opens contexts of a model: chooses their sizes, and where layers lie, by the memory there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from warnings import catch_warnings, simplefilter

from ggmlpy.backends.base import Backend
from ggmlpy.errors import AllocationError, ArgumentError
from ggmlpy.graph.buffer import BufferType
from ggmlpy.graph.types import TensorType
from ggmlpy.memory.cache_types import cache_type
from ggmlpy.memory.layouts import KVLayout
from ggmlpy.memory.sizes import Sizes, decide_sizes
from ggmlpy.models import Model, whole_memory
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.context_sizes import choose_sizes, reduce_to_memory, warn_of_length
from ggmlpy.runtime.fit import Fit, Needs, find_fit, free_memory, memory_needs
from ggmlpy.sched.compute import backends_for
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
    warn_of_length: Callable[[], None]  # of sequences, once they can be had
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

    def needs(self) -> list[Needs]:
        """What the context takes of each memory, and what that has. Nothing is taken."""
        return memory_needs(
            self.model,
            self.backends,
            self.sizes,
            self.type_k,
            self.type_v,
            n_gpu_layers=self.n_gpu_layers,
            overrides=self.override_tensors,
            flash_attn=self.flash_attn,
            kv_rotation=self.kv_rotation,
            free=self.free,
        )

    def open(self) -> Context:
        """The context that generates text. Raises AllocationError, with what would fit."""
        sizes = self.sizes
        try:
            context = self._open(
                self.model, n_ctx=sizes.n_ctx, n_seq_max=sizes.n_seq_max, kv_layout=sizes.layout
            )
        except MemoryError as error:
            raise _no_cache(sizes.n_ctx, error, self._would_fit()) from None
        self.warn_of_length()
        return context

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


def opener_for(
    model: Model,
    *,
    n_ctx: int,
    n_ctx_seq: int,
    n_seq_max: int,
    layout: KVLayout,
    n_ubatch: int,
    type_k: str | int | TensorType,
    type_v: str | int | TensorType,
    kv_rotation: bool | None,
    flash_attn: bool,
    backend: str | Backend | Sequence[str | Backend],
    n_threads: int | None,
    n_gpu_layers: int,
    override_tensors: Mapping[str, str] | None,
    fit: bool,
) -> ContextOpener:
    """The opener that follows from the options of `Llama`, which describes them.

    Raises ArgumentError, Unsupported, BackendError, and AllocationError where `fit` finds nothing
    that fits.
    """
    longest = model.hparams.n_ctx_train
    if model.n_ctx_limit is not None:
        longest = min(longest, model.n_ctx_limit)
    total, most = choose_sizes(n_ctx, n_ctx_seq, n_seq_max, layout != "split", longest)
    backends = backends_for(backend, n_threads)
    opener = ContextOpener(
        model,
        backends,
        sizes=decide_sizes(total, n_seq_max, layout, n_ubatch, most),
        type_k=cache_type("type_k", type_k),
        type_v=cache_type("type_v", type_v),
        kv_rotation=kv_rotation,
        flash_attn=flash_attn,
        n_gpu_layers=n_gpu_layers,
        override_tensors=override_tensors or {},
        free=free_memory(backends),
        warn_of_length=partial(warn_of_length, n_ctx, n_ctx_seq, n_seq_max, most, longest),
    )
    if fit:
        opener = opener.fit(n_ctx_is_given=bool(n_ctx or n_ctx_seq))
    if opener.fitted is None and not n_ctx and not n_ctx_seq:
        opener = opener.reduce()
    return opener


def _no_cache(n_ctx: int, error: MemoryError, hint: str = "") -> AllocationError:
    return AllocationError(
        f"a KV cache for n_ctx = {n_ctx} tokens: {error}; use a smaller n_ctx{hint}"
    )

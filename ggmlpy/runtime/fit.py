"""What fits the memory of devices: how many layers lie there, and tokens of context.

The context is reduced first, to at least FIT_CTX tokens a sequence; after that layers are left to
the host, from the first on. What is counted: weights, K, V and recurrent states, and the memory
that the largest step of the model runs in, from its graph. None of it is taken.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from warnings import catch_warnings, simplefilter

from ggmlpy.common.progress import tell
from ggmlpy.common.system_memory import physical_memory
from ggmlpy.errors import AllocationError
from ggmlpy.graph.buffer import HOST, BufferType, Place, UnallocatedBuffer
from ggmlpy.graph.types import TensorType
from ggmlpy.memory.cell_table import KV_PAD
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.sizes import Sizes, memory_bytes
from ggmlpy.models import whole_memory
from ggmlpy.runtime.plans import PlanCache
from ggmlpy.runtime.shape import Shapes
from ggmlpy.sched.placement import Placement, PlacementWarning

if TYPE_CHECKING:
    from ggmlpy.backends.base import Backend
    from ggmlpy.models import Model

FIT_CTX = 4096  # tokens a sequence, below which the context is not reduced to keep layers
_MARGIN = 1 << 30  # left free on a device, at most an eighth of what is free: others use it too

Overrides = Mapping[str, str] | Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Fit:
    """What was chosen. `used` and `free` are bytes by the names of devices."""

    n_gpu_layers: int
    sizes: Sizes
    used: Mapping[str, int]
    free: Mapping[str, int]

    def __str__(self) -> str:
        """`-ngl 20 -c 4096: cuda 7.1 of 8.0 GB`"""
        shares = (
            f"{name} {self.used.get(name, 0) / 1e9:.1f} of {free / 1e9:.1f} GB"
            for name, free in self.free.items()
        )
        return f"-ngl {self.n_gpu_layers} -c {self.sizes.n_ctx}: {', '.join(shares)}"


def find_fit(
    model: Model,
    backends: Sequence[Backend],
    sizes: Sizes,
    type_k: TensorType,
    type_v: TensorType,
    *,
    n_ctx_is_given: bool,
    overrides: Overrides = (),
    flash_attn: bool = True,
    kv_rotation: bool | None = None,
    free: Mapping[BufferType, int] | None = None,
) -> Fit | None:
    """The most layers, and at most these sizes, that fit the free memory of the devices; None if no
    device says how much it has.

    `n_ctx_is_given`: the context keeps its size, and only layers are chosen. `free` has the bytes
    that are free; None: now. Raises AllocationError where not even the tensors that `overrides`
    puts on a device fit.
    """
    free = free_memory(backends) if free is None else free
    types = type_k, type_v
    asked = _Fitting(model, backends, sizes, types, overrides, flash_attn, kv_rotation, free)
    if not asked.free:
        return None
    n_all = model.n_block + 1
    if asked.fits(n_all, sizes):
        return asked.found(n_all, sizes)
    least = sizes
    if not n_ctx_is_given and sizes.n_ctx_seq > FIT_CTX:
        least = _with(sizes, FIT_CTX)
        if asked.fits(n_all, least):
            pads = range(FIT_CTX // KV_PAD, sizes.n_ctx_seq // KV_PAD + 1)
            too_long = bisect_right(
                pads, False, key=lambda n: not asked.fits(n_all, _with(sizes, n * KV_PAD))
            )
            return asked.found(n_all, _with(sizes, pads[max(0, too_long - 1)] * KV_PAD))
    counts = range(n_all + 1)  # layers on devices, of which fewer always fit where more do
    too_many = bisect_right(counts, False, key=lambda n: not asked.fits(n, least))
    if too_many == 0:
        raise AllocationError(
            f"nothing fits: {asked.shortage(0, least)}, with no layer on a device and"
            f" n_ctx = {least.n_ctx}"
        )
    return asked.found(counts[too_many - 1], least)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a context takes of one memory, and what that has, in bytes."""

    name: str  # "host", or the device
    weights: int
    state: int  # K, V, recurrent states, and the lists of cells
    compute: int  # of the largest step
    has: int | None  # None: the device does not say

    @property
    def total(self) -> int:
        return self.weights + self.state + self.compute

    @property
    def fits(self) -> bool:
        return self.has is None or self.total <= self.has


def memory_needs(
    model: Model,
    backends: Sequence[Backend],
    sizes: Sizes,
    type_k: TensorType,
    type_v: TensorType,
    *,
    n_gpu_layers: int,
    overrides: Overrides = (),
    flash_attn: bool = True,
    kv_rotation: bool | None = None,
    free: Mapping[BufferType, int] | None = None,
) -> list[Needs]:
    """What weights, memory and the largest step of a context take, by where they lie: the host
    first, of which all is counted as had.

    Weights of the host are counted as they are in the file: kernels that want them packed in
    another way replace that copy.
    """
    free = free_memory(backends) if free is None else free
    types = type_k, type_v
    fitting = _Fitting(model, backends, sizes, types, overrides, flash_attn, kv_rotation, free)
    parts = fitting.parts(n_gpu_layers, sizes)
    order = sorted({at for part in parts for at in part}, key=lambda at: (not at.is_host, at.name))
    found = []
    for is_host in (True, False):
        for at in (at for at in order if at.is_host is is_host):
            weights, state, compute = (part.get(at, 0) for part in parts)
            has = physical_memory() if is_host else free.get(at)
            name = "host" if is_host else at.name
            found.append(Needs(name, weights, state, compute, has))
    return found


def free_memory(backends: Sequence[Backend]) -> dict[BufferType, int]:
    """The free bytes of devices that say how much they have."""
    devices = [b.buffer_type for b in backends if not b.buffer_type.is_host]
    return {at: n for at in devices if (n := at.free_bytes()) is not None}


def _with(sizes: Sizes, n_ctx_seq: int) -> Sizes:
    n_ctx = n_ctx_seq if sizes.one_stream else n_ctx_seq * sizes.n_seq_max
    return replace(sizes, n_ctx=n_ctx, n_ctx_seq=n_ctx_seq)


class _Fitting:
    """What placements and sizes take, against what is free."""

    def __init__(
        self,
        model: Model,
        backends: Sequence[Backend],
        sizes: Sizes,
        types: tuple[TensorType, TensorType],
        overrides: Overrides,
        flash_attn: bool,
        kv_rotation: bool | None,
        free: Mapping[BufferType, int],
    ) -> None:
        self._model = model
        self._backends = list(backends)
        self._types = types
        self._kv_rotation = kv_rotation
        self._overrides = overrides if isinstance(overrides, Mapping) else list(overrides)
        self._flash_attn = flash_attn
        self.free = free
        self._compute: dict[tuple[int, Sizes], dict[BufferType, int]] = {}
        self._n_tried = 0

    def fits(self, n_gpu_layers: int, sizes: Sizes) -> bool:
        self._n_tried += 1
        tell("finding what fits", min(0.9, self._n_tried / 20))
        return not self._short(n_gpu_layers, sizes)

    def found(self, n_gpu_layers: int, sizes: Sizes) -> Fit:
        tell("finding what fits", 1.0)
        taken = self._taken(n_gpu_layers, sizes)
        used = {at.name: n_bytes for at, n_bytes in taken.items()}
        return Fit(n_gpu_layers, sizes, used, {at.name: n for at, n in self.free.items()})

    def shortage(self, n_gpu_layers: int, sizes: Sizes) -> str:
        at, n_bytes = next(iter(self._short(n_gpu_layers, sizes).items()))
        return f"{at.name} needs {n_bytes / 1e9:.2f} GB and has {self.free[at] / 1e9:.2f} GB free"

    def _short(self, n_gpu_layers: int, sizes: Sizes) -> dict[BufferType, int]:
        """What is needed of memories that have less, without counting what graphs run in where
        that is not enough already."""
        placement = self._placement(n_gpu_layers)
        held = self._held(placement, sizes)
        short = self._above(held)
        if short:
            return short
        return self._above(self._taken(n_gpu_layers, sizes))

    def _above(self, needed: Mapping[BufferType, int]) -> dict[BufferType, int]:
        return {
            at: needed[at]
            for at, free in self.free.items()
            if needed.get(at, 0) > free - min(_MARGIN, free // 8)
        }

    def _taken(self, n_gpu_layers: int, sizes: Sizes) -> dict[BufferType, int]:
        placement = self._placement(n_gpu_layers)
        taken = self._held(placement, sizes)
        for at, n_bytes in self._compute_bytes(n_gpu_layers, placement, sizes).items():
            taken[at] = taken.get(at, 0) + n_bytes
        return taken

    def _placement(self, n_gpu_layers: int) -> Placement:
        with catch_warnings():  # the context issues them
            simplefilter("ignore", PlacementWarning)
            return Placement.for_model(self._model, self._backends, n_gpu_layers, self._overrides)

    def parts(self, n_gpu_layers: int, sizes: Sizes) -> tuple[dict[BufferType, int], ...]:
        """Weights; K, V and states; what the largest step runs in. The host is one memory."""
        placement = self._placement(n_gpu_layers)
        compute = self._compute_bytes(n_gpu_layers, placement, sizes)
        parts = self._weights(placement), self._state(placement, sizes), compute
        return tuple(map(_with_one_host, parts))

    def _held(self, placement: Placement, sizes: Sizes) -> dict[BufferType, int]:
        """Weights, K, V and states."""
        held = self._state(placement, sizes)
        for at, n_bytes in self._weights(placement).items():
            held[at] = held.get(at, 0) + n_bytes
        return held

    def _state(self, placement: Placement, sizes: Sizes) -> dict[BufferType, int]:
        memory = whole_memory(self._model)
        types = placement.buffer_types(memory)
        return dict(memory_bytes(memory, sizes, *self._types, types, self._kv_rotation))

    def _weights(self, placement: Placement) -> dict[BufferType, int]:
        found: dict[BufferType, int] = {}
        on_host = set()  # where a tensor that is used as two is mapped once
        for name, leaf in self._model.weights.leaves.items():
            at = placement.backend_of(name).buffer_type
            if at.is_host:
                if leaf.name in on_host:
                    continue
                on_host.add(leaf.name)
            found[at] = found.get(at, 0) + at.tensor_bytes(leaf.spec)
        return found

    def _compute_bytes(
        self, n_gpu_layers: int, placement: Placement, sizes: Sizes
    ) -> dict[BufferType, int]:
        """What the largest step runs in: of a fused attention it depends little on the context, so
        that one size is looked at."""
        if self._flash_attn and sizes.n_ctx_seq > FIT_CTX:
            sizes = _with(sizes, FIT_CTX)
        key = n_gpu_layers, sizes
        if key not in self._compute:
            lie = placement.buffer_types(whole_memory(self._model))
            types = {i: _Unallocated(at) for i, at in lie.items()}
            takes_counts = all(b.takes_counts for b in self._backends)
            source: SequenceMemory | None = None
            found: dict[BufferType, int] = {}
            for model in filter(None, (self._model.encoder, self._model)):
                with _placed(model, placement):
                    memory = SequenceMemory(
                        model.memory, sizes, *self._types, types, self._kv_rotation, source
                    )
                    shapes = Shapes(memory, self._flash_attn, takes_counts)
                    plans = PlanCache(model, memory, self._backends, None)
                    arenas = plans.arena_bytes(map(plans.graph_of, shapes.largest()))
                for (at, _), n_bytes in arenas.items():
                    found[at] = found.get(at, 0) + n_bytes + n_bytes // 16  # as `reserve` takes it
                source = memory
            self._compute[key] = found
        return self._compute[key]


def _with_one_host(part: Mapping[BufferType, int]) -> dict[BufferType, int]:
    """Memory that the host can address counts as one."""
    found: dict[BufferType, int] = {}
    for at, n_bytes in part.items():
        at = HOST if at.is_host else at
        found[at] = found.get(at, 0) + n_bytes
    return found


class _Unallocated(BufferType):
    """Memory of another type, of which nothing is taken."""

    __slots__ = ("_of",)

    def __init__(self, of: BufferType) -> None:
        super().__init__(of.name, of.device, is_host=False, alignment=of.alignment)
        self._of = of

    def _allocate(self, n_bytes: int) -> UnallocatedBuffer:
        return UnallocatedBuffer(self._of, n_bytes)


@contextmanager
def _placed(model: Model, placement: Placement) -> Iterator[None]:
    """Weights lie, without their bytes, where the placement has them."""
    places = {leaf: leaf.place for leaf in model.weights.leaves.values()}
    try:
        for name, leaf in model.weights.leaves.items():
            at = placement.backend_of(name).buffer_type
            if not at.is_host:
                leaf.place = Place(UnallocatedBuffer(at, at.tensor_bytes(leaf.spec)))
        yield
    finally:
        for leaf, place in places.items():
            leaf.place = place

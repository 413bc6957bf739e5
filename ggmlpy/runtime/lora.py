"""Which tokens of a ubatch have which LoRA adapters, and the inputs of a graph that say so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ggmlpy.backends.base import Backend, Weight
from ggmlpy.errors import ArgumentError, BadBatch
from ggmlpy.graph.count import Symbol
from ggmlpy.graph.tensor import Tensor
from ggmlpy.memory.state import Changes
from ggmlpy.memory.ubatch import Index, UBatch
from ggmlpy.models.lora import LoraAdapter, LoraInputs, LoraRows
from ggmlpy.sched.placement import Placement

# Adapters with their scales, in the order in which they are added: that of their digests, so that
# results depend neither on the order of a request nor on that of loading. None has scale 0.
Scales = tuple[tuple[LoraAdapter, float], ...]


def scales_of(adapters: Mapping[LoraAdapter, float]) -> Scales:
    """Adapters in their order, without those of scale 0. Raises ArgumentError."""
    for adapter, scale in adapters.items():
        if not math.isfinite(scale):
            raise ArgumentError(f"lora: the scale of {adapter.name} is {scale}: it must be finite")
    # Copies of one adapter are one, with the sum of their scales: none comes before the other.
    copies: dict[str, tuple[LoraAdapter, list[float]]] = {}
    for adapter, scale in adapters.items():
        copies.setdefault(adapter.digest, (adapter, []))[1].append(float(scale))
    summed = [(copies[digest][0], math.fsum(copies[digest][1])) for digest in sorted(copies)]
    return tuple((adapter, scale) for adapter, scale in summed if scale)


def changes_of(scales: Scales) -> Changes:
    """What adapters change, in a form that outlives them."""
    return tuple((adapter.digest, scale) for adapter, scale in scales)


def load_lora_weights(adapter: LoraAdapter, placement: Placement) -> None:
    """Load an adapter's tensors onto the devices of the weights that they change."""
    by_backend: dict[Backend, list[Weight]] = {}
    for name, leaf, op in adapter.leaves:
        weight = Weight(leaf, frozenset((op,)))
        by_backend.setdefault(placement.backend_of(name), []).append(weight)
    for backend, weights in by_backend.items():
        backend.load_weights(weights)


@dataclass(frozen=True, slots=True)
class LoraShape:
    """What a graph depends on of one adapter: how many of the tokens, and of those that are output,
    have it at most. None: all; 0: none."""

    adapter: LoraAdapter
    n_tokens: int | None = None
    n_outputs: int | None = None

    def exact(self, n_tokens: int, n_outputs: int) -> LoraShape:
        """The same for the numbers of a run."""
        return LoraShape(
            self.adapter,
            self.n_tokens and n_tokens,
            self.n_outputs and n_outputs,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """Some of n columns, with the scale of each."""

    n: int
    ids: Index
    scales: NDArray[np.float32]

    def at_most(self, bound: int, is_exact: bool) -> int | None:
        """How many a graph has inputs for, of a shape with so many columns."""
        if not len(self.ids):
            return 0
        if len(self.ids) == self.n:
            return None
        return len(self.ids) if is_exact else bound


@dataclass(frozen=True, slots=True, eq=False)
class TokenAdapter:
    """One adapter of a ubatch, and the tokens that have it."""

    adapter: LoraAdapter
    tokens: _Columns
    outputs: _Columns  # of those that are output

    def shape(self, n_tokens: int, n_outputs: int, is_exact: bool) -> LoraShape:
        """Its part of a shape of so many tokens and outputs."""
        return LoraShape(
            self.adapter,
            self.tokens.at_most(n_tokens, is_exact),
            self.outputs.at_most(n_outputs, is_exact),
        )


class SequenceAdapters:
    """The adapters of the tokens that are run next of each sequence."""

    def __init__(self) -> None:
        self._by_seq: dict[int, Scales] = {}

    def set(self, seq: int, scales: Scales) -> bool:
        """Set those of a sequence. Returns whether that changes anything."""
        if self._by_seq.get(seq, ()) == scales:
            return False
        if scales:
            self._by_seq[seq] = scales
        else:
            del self._by_seq[seq]
        return True

    def uses(self, adapter: LoraAdapter) -> list[int]:
        """The sequences that have an adapter."""
        return [s for s, scales in self._by_seq.items() if any(a is adapter for a, _ in scales)]

    def check(self, seq_ids: Sequence[tuple[int, ...]]) -> None:
        """Raise BadBatch for a token of several sequences that have other adapters each."""
        if not self._by_seq:
            return
        for seqs in dict.fromkeys(seq_ids):
            if len({self._by_seq.get(seq, ()) for seq in seqs}) > 1:
                raise BadBatch(
                    f"the batch has a token of sequences {list(seqs)}, which have different LoRA"
                    " adapters: decode it once for each"
                )

    def of(self, ubatch: UBatch, outputs: Sequence[int]) -> list[TokenAdapter]:
        """The adapters of a ubatch's tokens, of which `outputs` are output."""
        runs = [self._by_seq.get(seq, ()) for seq in ubatch.run_seqs.tolist()]
        if not any(runs):
            return []
        found = {pair[0]: None for scales in runs for pair in scales}
        parts = []
        for adapter in sorted(found, key=lambda adapter: adapter.digest):
            by_run = np.array([dict(scales).get(adapter, 0.0) for scales in runs], np.float32)
            by_token = np.repeat(by_run, ubatch.run_lengths)
            of_outputs = by_token[np.array(outputs, np.int64)]
            parts.append(TokenAdapter(adapter, _columns(by_token), _columns(of_outputs)))
        return parts


def _columns(scales: NDArray[np.float32]) -> _Columns:
    ids = np.flatnonzero(scales)
    return _Columns(len(scales), ids, scales[ids])


class AdapterInputs:
    """The inputs for the adapters of a graph, as arrays.

    `extents` are the numbers of columns that they are declared for, `numbers` those that they were
    filled for last: of each adapter tokens and outputs.
    """

    def __init__(self, leaves: Sequence[LoraInputs]) -> None:
        self._sides = [
            (_Arrays.of(part.tokens), None if part.outputs is None else _Arrays.of(part.outputs))
            for part in leaves
        ]
        both = (rows for part in leaves for rows in (part.tokens, part.outputs))
        self.extents = [rows.scales.ne[1] for rows in both if rows is not None]
        self.numbers: list[tuple[int, int]] = []

    def fill(self, parts: Sequence[TokenAdapter]) -> dict[str, int]:
        """Set them for a ubatch. Returns the numbers by the names of their symbols."""
        by_name: dict[str, int] = {}
        self.numbers = []
        for i, ((tokens, outputs), part) in enumerate(zip(self._sides, parts, strict=True)):
            tokens.fill(part.tokens)
            if outputs is not None:
                outputs.fill(part.outputs)
            numbers = len(part.tokens.ids), len(part.outputs.ids)
            self.numbers.append(numbers)
            by_name |= zip(_symbols(i), numbers, strict=True)
        return by_name


@dataclass(frozen=True, slots=True, eq=False)
class _Arrays:
    """The inputs for some columns."""

    scales: NDArray[np.float32]
    ids: NDArray[np.int32] | None

    @classmethod
    def of(cls, rows: LoraRows) -> _Arrays:
        ids = None if rows.ids is None else rows.ids.array().reshape(-1)
        return cls(rows.scales.array().reshape(-1), ids)

    def fill(self, columns: _Columns) -> None:
        n = len(columns.ids)
        self.scales[:n] = columns.scales
        if self.ids is not None:
            self.ids[:n] = columns.ids


def declare_adapter(
    add: Callable[[str, Sequence[int], str], Tensor],
    i: int,
    part: LoraShape,
    extents: tuple[int, int],
    is_exact: bool,
) -> LoraInputs:
    """The leaves of the i-th adapter, made by `add`, for T tokens of which O are output."""
    of_tokens, of_outputs = _symbols(i)
    tokens = _declare(add, of_tokens, part.n_tokens, extents[0], is_exact)
    assert tokens is not None, "a graph has the adapters of its tokens"
    return LoraInputs(
        part.adapter, tokens, _declare(add, of_outputs, part.n_outputs, extents[1], is_exact)
    )


def _declare(
    add: Callable[[str, Sequence[int], str], Tensor],
    symbol: str,
    n: int | None,
    whole: int,
    is_exact: bool,
) -> LoraRows | None:
    if n == 0:
        return None
    if n is None:
        return LoraRows(add("f32", (1, whole), f"inp_lora_scales_{symbol}"), None)
    M = n if is_exact or n == 1 else Symbol(symbol, n).count
    scales = add("f32", (1, M), f"inp_lora_scales_{symbol}")
    return LoraRows(scales, add("i32", (M,), f"inp_lora_ids_{symbol}"))


def _symbols(i: int) -> tuple[str, str]:
    """The names of the numbers of the i-th adapter: tokens that have it, and outputs."""
    return f"L{i}", f"LO{i}"

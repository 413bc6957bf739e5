"""Shapes of graphs: few of them serve any mixture of sequences.

A shape bounds the numbers of tokens, outputs and sequences; a run says how many there are. Which
sequences they are of, and which cells they see, are inputs. A context needs these:

    one token        of one sequence
    decode           one token each of up to n_seq_max sequences: each is a stream of its own
    mixture          up to n_ubatch tokens of any sequences, up to n_seq_max of them output
    all outputs      a mixture with more of them output, as for the logits of all tokens

Attention in separate ops (without flash attention) is there to look into a graph. Its cells are
gathered, and each combination of lengths is a shape of its own; so it is for backends whose plans
take no counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from ggmlpy.graph.count import Symbol
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.slots import SlotInfo
from ggmlpy.runtime.gathered import GATHERED_PAD, Group, gathered_length, groups_of
from ggmlpy.runtime.lora import LoraShape, TokenAdapter


class Streams(Enum):
    """The streams of queries in attention, its dimension 3. Results do not depend on them."""

    ONE = "one"  # all tokens are one stream
    SEQUENCES = "sequences"  # each sequence, which have as many tokens each
    TOKENS = "tokens"  # each token, of another sequence each


@dataclass(frozen=True)
class Shape:
    """All that a graph depends on. Two ubatches of one shape run the same plan.

    With `is_exact` its numbers are those of every run.
    """

    n_tokens: int  # at most, as the other two
    n_outputs: int
    n_seqs: int
    streams: Streams = Streams.ONE
    is_exact: bool = False
    groups: tuple[Group, ...] = ()  # without flash attention
    lora: tuple[LoraShape, ...] = ()  # of the adapters that any token has

    @cached_property
    def extents(self) -> tuple[int, int, int]:
        """T, O and R as dimensions of tensors: tokens, outputs and sequences."""
        T = self._extent("T", self.n_tokens)
        # Where each token is a stream, each is of another sequence.
        R = T if self.streams is Streams.TOKENS else self._extent("R", self.n_seqs)
        return T, self._extent("O", self.n_outputs), R

    def _extent(self, name: str, bound: int) -> int:
        return bound if self.is_exact or bound == 1 else Symbol(name, bound).count

    def __str__(self) -> str:
        outputs = f", {self.n_outputs} output" if self.n_outputs < self.n_tokens else ""
        if self.n_tokens == 1:
            return "1 token"
        streams = " of as many sequences" if self.streams is Streams.TOKENS else ""
        return f"{self.n_tokens} tokens{streams}{outputs}"

    def with_lora(self, parts: Sequence[TokenAdapter]) -> Shape:
        """The same for tokens that have adapters."""
        if not parts:
            return self
        n_tokens, n_outputs, exact = self.n_tokens, self.n_outputs, self.is_exact
        return self.having(part.shape(n_tokens, n_outputs, exact) for part in parts)

    def having(self, lora: Iterable[LoraShape]) -> Shape:
        """The same with these adapters."""
        return replace(self, lora=tuple(lora))


def can_fuse(memory: SequenceMemory) -> bool:
    """Whether all layers can have flash attention, which has no bias by buckets of distances.

    Attention to a source can have it in any case.
    """
    return all(cache.cells.buckets is None for cache in memory.caches)


class Shapes:
    """The shapes of a context."""

    def __init__(self, memory: SequenceMemory, flash_attn: bool, takes_counts: bool) -> None:
        sizes = memory.sizes
        self._memory = memory
        # Without attention there is nothing to gather.
        flash_attn = flash_attn or not any(cache.store.k for cache in memory.caches)
        self._flash_attn = flash_attn and can_fuse(memory)
        # Attention to sources is gathered only where the user asks for separate ops.
        self._gathers_source = not flash_attn
        self._takes_counts = takes_counts
        n_ctx = max(sizes.n_ctx, *(cache.cells.n_ctx for cache in memory.caches))  # whole pages
        n_most = self._n_most = min(sizes.n_ubatch, n_ctx)
        n_seqs = self._n_seqs = min(sizes.n_seq_max, self._n_most)
        self.one_token = self._one_token()  # a sequence alone that decodes
        self.decode = Shape(n_seqs, n_seqs, n_seqs, Streams.TOKENS)  # one token each of several
        self.mixture = Shape(n_most, n_seqs, n_seqs)  # any tokens of any sequences
        self.all_outputs = Shape(n_most, n_most, n_seqs)  # the same with the logits of all tokens

    def of(self, slot_info: SlotInfo, n_outputs: int) -> Shape:
        """The shape that a ubatch runs in, whose tokens are in the memory."""
        ubatch = slot_info.ubatch
        n_tokens, n_runs = len(ubatch.index), len(ubatch.runs)
        if not self._flash_attn:
            source = self._memory.source
            groups = groups_of(slot_info, source, gathers_source=self._gathers_source)
            return Shape(n_tokens, max(1, n_outputs), n_runs, is_exact=True, groups=groups)
        if not self._takes_counts:
            streams = Streams.TOKENS if ubatch.is_decode else Streams.ONE
            return Shape(n_tokens, max(1, n_outputs), n_runs, streams, is_exact=True)
        if n_tokens == 1:
            return self.one_token
        if ubatch.is_decode and n_tokens <= self._n_seqs:
            return self.decode
        return self.all_outputs if n_outputs > self._n_seqs else self.mixture

    def all(self) -> list[Shape]:
        """Every shape that a batch may need; none if each combination of lengths is one."""
        if not (self._flash_attn and self._takes_counts):
            return []
        if self._n_most == 1:
            return [self.one_token]
        return list(dict.fromkeys((self.one_token, self.decode, self.mixture, self.all_outputs)))

    def largest(self) -> list[Shape]:
        """Those that take the most memory."""
        if self._flash_attn:
            return [self.all_outputs if self._n_most > 1 else self.one_token]
        return list(dict.fromkeys((self._full(1), self._full(self._n_seqs))))

    def _one_token(self) -> Shape:
        if self._flash_attn:
            return Shape(1, 1, 1, Streams.TOKENS)
        n_kv = [gathered_length(1)] * len(self._memory.caches)
        if self._memory.source is not None:
            n_kv.append(gathered_length(1) if self._gathers_source else 0)
        return Shape(1, 1, 1, is_exact=True, groups=(Group(1, 1, tuple(n_kv)),))

    def _full(self, n_seqs: int) -> Shape:
        """In separate ops: a full ubatch of so many sequences at full depth that share no cell."""
        n_each, n_sharing = self._n_most // n_seqs, n_seqs if self._memory.sizes.one_stream else 1
        n_kv = []
        for cells in (cache.cells for cache in self._memory.caches):
            n = cells.kv_size + GATHERED_PAD - 1 if cells.window else cells.kv_size // n_sharing
            n_kv.append(gathered_length(n))
        if self._memory.source is not None:
            n = self._memory.source.caches[0].cells.kv_size // n_sharing
            n_kv.append(gathered_length(n) if self._gathers_source else 0)
        groups = (Group(n_seqs, n_each, tuple(n_kv)),)
        n_tokens = n_seqs * n_each
        return Shape(n_tokens, n_tokens, n_seqs, is_exact=True, groups=groups)

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

from dataclasses import dataclass
from functools import cached_property

from ggmlpy.graph.count import Symbol
from ggmlpy.memory.cell_table import padded
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.ubatch import UBatch
from ggmlpy.runtime.gathered import Group, groups_of


@dataclass(frozen=True)
class Shape:
    """All that a graph depends on. Two ubatches of one shape run the same plan.

    With `is_exact` its numbers are those of every run.
    """

    n_tokens: int  # at most, as the other two
    n_outputs: int
    n_seqs: int
    n_stream: int = 1  # streams of equal length in attention; 0: each token is one
    is_exact: bool = False
    groups: tuple[Group, ...] = ()  # without flash attention

    @cached_property
    def extents(self) -> tuple[int, int, int]:
        """T, O and R as dimensions of tensors: tokens, outputs and sequences."""
        T = self._extent("T", self.n_tokens)
        # Where each token is a stream, each is of another sequence.
        R = T if self.n_stream == 0 else self._extent("R", self.n_seqs)
        return T, self._extent("O", self.n_outputs), R

    def _extent(self, name: str, bound: int) -> int:
        return bound if self.is_exact or bound == 1 else Symbol(name, bound).count

    def __str__(self) -> str:
        outputs = f", {self.n_outputs} output" if self.n_outputs < self.n_tokens else ""
        streams = " of as many sequences" if self.n_stream == 0 and self.n_tokens > 1 else ""
        return f"{self.n_tokens} token{'s' * (self.n_tokens > 1)}{streams}{outputs}"


class Shapes:
    """The shapes of a context."""

    def __init__(self, memory: SequenceMemory, flash_attn: bool, takes_counts: bool) -> None:
        sizes = memory.sizes
        self._memory = memory
        self._flash_attn = flash_attn
        self._takes_counts = takes_counts
        n_ctx = max(sizes.n_ctx, *(cache.cells.n_ctx for cache in memory.caches))  # whole pages
        self._n_most = min(sizes.n_ubatch, n_ctx)
        self._n_seqs = min(sizes.n_seq_max, self._n_most)

    def of(self, ubatch: UBatch, n_outputs: int) -> Shape:
        """The shape that a ubatch runs in, whose tokens are in the memory."""
        n_tokens, n_runs = len(ubatch.index), len(ubatch.runs)
        if not self._flash_attn:
            groups = groups_of(ubatch, self._memory.caches)
            return Shape(n_tokens, max(1, n_outputs), n_runs, is_exact=True, groups=groups)
        if not self._takes_counts:
            n_stream = 0 if ubatch.n_each == 1 else 1
            return Shape(n_tokens, max(1, n_outputs), n_runs, n_stream, is_exact=True)
        if n_tokens == 1:
            return self.one_token
        if ubatch.n_each == 1 and n_tokens <= self._n_seqs:
            return self.decode
        return self.mixture(all_outputs=n_outputs > self._n_seqs)

    @property
    def one_token(self) -> Shape:
        """One token of one sequence, the shape of a sequence alone that decodes."""
        return Shape(1, 1, 1, 0)

    @property
    def decode(self) -> Shape:
        """One token each of several sequences."""
        return Shape(self._n_seqs, self._n_seqs, self._n_seqs, 0)

    def mixture(self, *, all_outputs: bool) -> Shape:
        """Any tokens of any sequences."""
        return Shape(self._n_most, self._n_most if all_outputs else self._n_seqs, self._n_seqs)

    def all(self) -> list[Shape]:
        """Every shape that a batch may need; none if each combination of lengths is one."""
        if not (self._flash_attn and self._takes_counts):
            return []
        mixtures = (self.mixture(all_outputs=all_outputs) for all_outputs in (False, True))
        return list(dict.fromkeys((self.one_token, self.decode, *mixtures)))

    def largest(self) -> list[Shape]:
        """Those that take the most memory."""
        if self._flash_attn:
            return [self.mixture(all_outputs=True)]
        return list(dict.fromkeys((self._full(1), self._full(self._n_seqs))))

    def _full(self, n_seqs: int) -> Shape:
        """In separate ops: a full ubatch of so many sequences at full depth that share no cell."""
        n_each, n_sharing = self._n_most // n_seqs, n_seqs if self._memory.sizes.one_stream else 1
        caches = (cache.cells for cache in self._memory.caches)
        n_kv = (padded(2 * c.kv_size if c.window else c.kv_size // n_sharing) for c in caches)
        groups = (Group(n_seqs, n_each, tuple(n_kv)),)
        n_tokens = n_seqs * n_each
        return Shape(n_tokens, n_tokens, n_seqs, is_exact=True, groups=groups)

"""Batches of tokens from any sequences, and how they are split into ubatches.

Tokens may be added in any order. A ubatch has them sequence after sequence, short runs of tokens
first and runs of equal length by stream, so that the order of adding does not change the speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.arguments import checked
from ggmlpy.errors import BadBatch, Unsupported
from ggmlpy.memory.spans import MAX_POSITION


@dataclass(slots=True)
class Batch:
    """Tokens to decode: of each its position, its sequences, and whether its logits are output."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    seq_ids: list[tuple[int, ...]] = field(default_factory=list)
    outputs: list[bool] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    @checked
    def add(self, token: int, position: int, seq_ids: Sequence[int], output: bool = False) -> None:
        """Append one token of the sequences `seq_ids`, such as (0,). Raises ArgumentError."""
        self.tokens.append(token)
        self.positions.append(position)
        self.seq_ids.append(tuple(seq_ids))
        self.outputs.append(output)

    @checked
    def add_sequence(
        self, seq: int, tokens: Sequence[int], start: int, *, all_outputs: bool = False
    ) -> None:
        """Append consecutive tokens of one sequence. Logits are output for the last one, or all.

        Raises ArgumentError.
        """
        self.extend(seq, tokens, start, all_outputs=all_outputs)

    def extend(
        self,
        seq: int,
        tokens: Sequence[int],
        start: int,
        *,
        all_outputs: bool = False,
        n_outputs: int = 1,
    ) -> None:
        """`add_sequence` without the check of argument types. Logits are output for the last
        `n_outputs` tokens, at most all."""
        if not tokens:
            return
        n = len(tokens)
        self.tokens += tokens
        self.positions += range(start, start + n)
        self.seq_ids += [(seq,)] * n
        n_outputs = n if all_outputs else n_outputs
        self.outputs += [False] * (n - n_outputs) + [True] * n_outputs


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Consecutive tokens of one sequence (or of the sequences that share them) in a ubatch."""

    seqs: tuple[int, ...]
    index: NDArray[np.int64]  # of the tokens in the batch


def split(batch: Batch, n_ubatch: int, *, may_cut: bool = True) -> list[list[TokenRun]]:
    """The batch as ubatches of at most `n_ubatch` tokens, each a list of runs.

    Short runs come first, so that a sequence that decodes one token does not wait for a prompt. A
    run that does not fit is cut and continued in the next ubatch, if that is allowed, see
    `check_whole`; else it begins the next one. A batch with tokens of several
    sequences is split in its own order, because such a token needs all that each of its sequences
    has before it.
    """
    everything = np.arange(len(batch))
    if any(len(seqs) > 1 for seqs in batch.seq_ids):
        pieces = [everything[at : at + n_ubatch] for at in range(0, len(batch), n_ubatch)]
        return [_runs_of(batch, piece) for piece in pieces]
    waiting = _runs_of(batch, everything)
    ubatches: list[list[TokenRun]] = []
    n_free = 0
    while waiting:
        if n_free == 0:
            ubatches.append([])
            n_free = n_ubatch
        run = waiting.pop(0)
        if len(run.index) > n_free and not may_cut:
            ubatches.append([])
            n_free = n_ubatch
        ubatches[-1].append(TokenRun(run.seqs, run.index[:n_free]))
        if len(run.index) > n_free:
            waiting.insert(0, TokenRun(run.seqs, run.index[n_free:]))
        n_free -= min(n_free, len(run.index))
    return [_in_order(runs) for runs in ubatches]


def _runs_of(batch: Batch, index: NDArray[np.int64]) -> list[TokenRun]:
    """Some of the batch's tokens, grouped by the sequences they belong to."""
    by_seqs: dict[tuple[int, ...], list[int]] = {}
    for i in index.tolist():
        by_seqs.setdefault(batch.seq_ids[i], []).append(i)
    return _in_order([TokenRun(seqs, np.array(indices)) for seqs, indices in by_seqs.items()])


def _in_order(runs: list[TokenRun]) -> list[TokenRun]:
    return sorted(runs, key=lambda run: (len(run.index), run.seqs))


def check_tokens(tokens: Sequence[int], n_vocab: int) -> None:
    """Raise BadBatch if there are no tokens, or one is outside a vocabulary of `n_vocab`."""
    if not len(tokens):
        raise BadBatch("no tokens to decode")
    if set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < n_vocab:
        return  # what nearly all are: a tenth of the time of the loop
    for i, token in enumerate(tokens):
        if not isinstance(token, Integral) or not 0 <= token < n_vocab:
            raise BadBatch(f"token {token!r} at index {i} is not in the vocabulary of {n_vocab}")


def check(
    batch: Batch,
    n_vocab: int,
    n_seq_max: int,
    unified: bool,
    recurrent: bool,
    next_position: Sequence[int],
) -> None:
    """Raise BadBatch or Unsupported unless a batch can be decoded.

    `next_position` is the position of the next token of each sequence.
    """
    lists = (batch.tokens, batch.positions, batch.seq_ids, batch.outputs)
    lengths = [len(each) for each in lists]
    if len(set(lengths)) != 1:
        raise BadBatch(
            f"the batch has {lengths[0]} tokens, {lengths[1]} positions, {lengths[2]} seq_ids and"
            f" {lengths[3]} outputs: the numbers must be equal"
        )
    check_tokens(batch.tokens, n_vocab)
    expected = list(next_position)
    for i, (position, seqs) in enumerate(zip(batch.positions, batch.seq_ids, strict=True)):
        if not seqs or len(set(seqs)) != len(seqs):
            raise BadBatch(
                f"token at index {i} names sequences {list(seqs)}: one or more, once each"
            )
        for seq in seqs:
            if not 0 <= seq < n_seq_max:
                raise BadBatch(f"token at index {i} is of sequence {seq}: n_seq_max is {n_seq_max}")
            if position != expected[seq]:
                raise BadBatch(
                    f"token at index {i} is at position {position} of sequence {seq}, whose next"
                    f" position is {expected[seq]}"
                )
            if position > MAX_POSITION:
                raise BadBatch(
                    f"token at index {i} is at position {position}: above {MAX_POSITION}"
                )
            expected[seq] += 1
        if len(seqs) > 1 and not unified:
            raise Unsupported(
                f"token at index {i} is of sequences {list(seqs)}: a token of several sequences"
                " needs kv_unified=True; or decode it once and use seq_cp"
            )
        if len(seqs) > 1 and recurrent:
            raise Unsupported(
                f"token at index {i} is of sequences {list(seqs)}: the model has recurrent layers,"
                " which keep one state a sequence; decode it once and use seq_cp"
            )


def check_whole(batch: Batch, n_ubatch: int) -> None:
    """Raise BadBatch or Unsupported unless the tokens of every sequence fit one ubatch.

    Where attention is not causal, tokens see those behind them: all must be there at once.
    """
    n_tokens = Counter(seq for seqs in batch.seq_ids for seq in seqs)
    for seq, n in n_tokens.items():
        if n > n_ubatch:
            raise BadBatch(
                f"the batch has {n} tokens of sequence {seq}: attention of this model is not"
                f" causal, so they must fit one ubatch, and n_ubatch is {n_ubatch}"
            )
    for i, seqs in enumerate(batch.seq_ids):
        if len(seqs) > 1:
            raise Unsupported(
                f"token at index {i} is of sequences {list(seqs)}: attention of this model is not"
                " causal, so it would see what comes behind it in each; decode it once for each"
            )


def check_encoded(batch: Batch, n_source: Callable[[int], int]) -> None:
    """Raise BadBatch unless every sequence has a source, of `n_source` tokens, Unsupported for a
    token of several sequences: each has a source of its own."""
    for seqs in dict.fromkeys(batch.seq_ids):
        if len(seqs) > 1:
            raise Unsupported(
                f"the batch has a token of sequences {list(seqs)}: each has a source of its own;"
                " decode it once and use seq_cp"
            )
        if not n_source(seqs[0]):
            raise BadBatch(
                f"the batch has tokens of sequence {seqs[0]}, which has no source: encode it first"
            )


def check_shared(batch: Batch, histories: Sequence[int]) -> None:
    """Raise BadBatch if the sequences of a token differ before it.

    `histories` has a number for each sequence, equal for those that hold the same cells. A token of
    several sequences has one K and V, so it must see the same tokens in each.
    """
    current = list(histories)
    for i, seqs in enumerate(batch.seq_ids):
        for seq in seqs[1:]:
            if current[seq] != current[seqs[0]]:
                raise BadBatch(
                    f"token at index {i} is of sequences {list(seqs)}, but {seqs[0]} and {seq} do"
                    " not share all tokens before it: decode it once for each"
                )
        for seq in seqs:
            current[seq] = len(histories) + i

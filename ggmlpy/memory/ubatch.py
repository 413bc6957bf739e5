"""The order of a ubatch's tokens in a graph's inputs: all that follows from their sequences.

A step that decodes one more token of the same sequences has the same UBatch as the step before, so
a UBatch is made once for many steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from ggmlpy.memory.batch import TokenRun

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SegmentShape:
    """Tokens that attend together: the same number from each of some neighbouring streams."""

    n_tokens: int
    first_stream: int = 0
    n_stream: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class EqualRuns:
    """Neighbouring runs of equal length in a segment: its rows `first` up to `stop`."""

    first: int
    stop: int
    seqs: Index  # [runs]; for tokens of several sequences the first one: all see the same


@dataclass(frozen=True, slots=True, eq=False)
class UBatch:
    """One ubatch, sequence after sequence."""

    runs: list[TokenRun]
    indices: list[int]  # of each token in the batch
    index: Index  # the same as an array
    segments: tuple[SegmentShape, ...]
    members: tuple[tuple[EqualRuns, ...], ...]  # of each segment, for its mask
    lengths: tuple[tuple[int, int], ...]  # (tokens, runs) of neighbouring runs of equal length
    is_shared: bool  # whether a token belongs to several sequences
    # For tokens that are appended, behind all others of their streams:
    seqs: Index  # [tokens]
    offsets: Index  # [tokens]: how many of the stream's new tokens come before
    streams: Index  # each once
    n_new: Index  # tokens of each stream
    run_seqs: Index  # [runs]
    run_ends: Index  # [runs]: the last token of each

    @classmethod
    def of(cls, runs: list[TokenRun], unified: bool) -> UBatch:
        """A ubatch of these runs."""
        lengths = np.array([len(run.index) for run in runs])
        ends = np.cumsum(lengths)
        index = runs[0].index if len(runs) == 1 else np.concatenate([run.index for run in runs])
        run_seqs = np.array([run.seqs[0] for run in runs])
        everything = np.arange(len(index))
        groups = [runs] if unified else _side_by_side(runs)
        return cls(
            runs=runs,
            indices=index.tolist(),
            index=index,
            segments=tuple(_segment(group, unified) for group in groups),
            members=tuple(_equal_runs(group) for group in groups),
            lengths=_lengths(runs),
            is_shared=any(len(run.seqs) > 1 for run in runs),
            seqs=np.repeat(run_seqs, lengths),
            offsets=everything if unified else everything - np.repeat(ends - lengths, lengths),
            streams=np.zeros(1, np.int64) if unified else run_seqs,
            n_new=ends[-1:] if unified else lengths,
            run_seqs=run_seqs,
            run_ends=ends - 1,
        )


def _side_by_side(runs: list[TokenRun]) -> list[list[TokenRun]]:
    """Runs of equal length in neighbouring streams, which attend together."""
    groups: list[list[TokenRun]] = []
    for run in runs:
        before = groups[-1][-1] if groups else None
        if (
            before is not None
            and len(before.index) == len(run.index)
            and before.seqs[0] + 1 == run.seqs[0]
        ):
            groups[-1].append(run)
        else:
            groups.append([run])
    return groups


def _segment(runs: list[TokenRun], unified: bool) -> SegmentShape:
    n_tokens = sum(len(run.index) for run in runs)
    return SegmentShape(n_tokens) if unified else SegmentShape(n_tokens, runs[0].seqs[0], len(runs))


def _lengths(runs: list[TokenRun]) -> tuple[tuple[int, int], ...]:
    counted = [(n, len(list(same))) for n, same in groupby(len(run.index) for run in runs)]
    return tuple((n * n_runs, n_runs) for n, n_runs in counted)


def _equal_runs(runs: list[TokenRun]) -> tuple[EqualRuns, ...]:
    equal, first = [], 0
    for n, same in groupby(runs, key=lambda run: len(run.index)):
        seqs = np.array([run.seqs[0] for run in same])
        stop = first + n * len(seqs)
        equal.append(EqualRuns(first, stop, seqs))
        first = stop
    return tuple(equal)

"""The order of a ubatch's tokens in a graph's inputs: all that follows from their sequences.

A step that decodes one more token of the same sequences has the same UBatch as the step before, so
a UBatch is made once for many steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ggmlpy.memory.batch import TokenRun

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class UBatch:
    """One ubatch, sequence after sequence."""

    runs: list[TokenRun]
    indices: list[int]  # of each token in the batch
    index: Index  # the same as an array
    is_decode: bool  # whether every run is one token
    is_shared: bool  # whether a token belongs to several sequences
    all_seqs: frozenset[int]
    seqs: Index  # [tokens]; of a token of several sequences the first one: all see the same
    run_seqs: Index  # [runs]
    run_ends: Index  # [runs]: the last token of each
    run_lengths: Index  # [runs]
    steps: Index  # [tokens]: how many of the run's tokens come before
    n_behind: Index  # [tokens]: how many come after
    # For tokens that are appended, behind all others of their streams:
    offsets: Index  # [tokens]: how many of the stream's new tokens come before
    streams: Index  # each once
    n_new: Index  # tokens of each stream

    @classmethod
    def of(cls, runs: list[TokenRun], unified: bool) -> UBatch:
        """A ubatch of these runs."""
        lengths = np.array([len(run.index) for run in runs])
        ends = np.cumsum(lengths)
        index = runs[0].index if len(runs) == 1 else np.concatenate([run.index for run in runs])
        run_seqs = np.array([run.seqs[0] for run in runs])
        everything = np.arange(len(index))
        steps = everything - np.repeat(ends - lengths, lengths)
        return cls(
            runs=runs,
            indices=index.tolist(),
            index=index,
            is_decode=len(runs) == len(index),
            is_shared=any(len(run.seqs) > 1 for run in runs),
            all_seqs=frozenset(seq for run in runs for seq in run.seqs),
            seqs=np.repeat(run_seqs, lengths),
            run_seqs=run_seqs,
            run_ends=ends - 1,
            run_lengths=lengths,
            steps=steps,
            n_behind=np.repeat(lengths, lengths) - steps - 1,
            offsets=everything if unified else steps,
            streams=np.zeros(1, np.int64) if unified else run_seqs,
            n_new=ends[-1:] if unified else lengths,
        )

    def by_run(self) -> Iterator[tuple[TokenRun, slice]]:
        """The runs, and where the tokens of each are."""
        for run, last in zip(self.runs, self.run_ends.tolist(), strict=True):
            yield run, slice(last + 1 - len(run.index), last + 1)

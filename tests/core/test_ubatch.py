"""How a ubatch's tokens lie in a graph's inputs."""

from __future__ import annotations

import numpy as np
import pytest

from ggmlpy.errors import BadBatch
from ggmlpy.memory.batch import Batch, check_shared, split
from ggmlpy.memory.ubatch import UBatch


def ubatch_of(seq_of_token: list[int], unified: bool) -> UBatch:
    """The one ubatch of tokens of these sequences, each sequence's positions from 0 on."""
    batch = Batch()
    for i, seq in enumerate(seq_of_token):
        batch.add(0, seq_of_token[:i].count(seq), (seq,))
    (runs,) = split(batch, 512)
    return UBatch.of(runs, unified)


def test_streams_of_their_own_count_their_new_tokens_each() -> None:
    made = ubatch_of([3, 1, 2, 5, 3], unified=False)
    assert made.indices == [1, 2, 3, 0, 4]
    assert made.seqs.tolist() == [1, 2, 5, 3, 3]
    assert made.offsets.tolist() == made.steps.tolist() == [0, 0, 0, 0, 1]
    assert made.n_behind.tolist() == [0, 0, 0, 1, 0]
    assert (made.streams.tolist(), made.n_new.tolist()) == ([1, 2, 5, 3], [1, 1, 1, 2])
    assert made.run_ends.tolist() == [0, 1, 2, 4]
    assert not made.is_decode
    assert ubatch_of([3, 1, 2], unified=False).is_decode


def test_a_shared_stream_counts_all_new_tokens() -> None:
    made = ubatch_of([3, 1, 2, 5, 3], unified=True)
    assert made.offsets.tolist() == [0, 1, 2, 3, 4]
    assert made.steps.tolist() == [0, 0, 0, 0, 1]
    assert (made.streams.tolist(), made.n_new.tolist()) == ([0], [5])


def test_ubatches_are_filled_with_short_runs_first() -> None:
    batch = Batch()
    for seq, n in ((0, 5), (1, 1), (2, 2), (3, 1)):
        batch.add_sequence(seq, [0] * n, 0)
    made = [[(run.seqs[0], len(run.index)) for run in runs] for runs in split(batch, 4)]
    assert made == [[(1, 1), (3, 1), (2, 2)], [(0, 4)], [(0, 1)]]
    cut = [[(run.seqs[0], len(run.index)) for run in runs] for runs in split(batch, 6)]
    assert cut == [[(1, 1), (3, 1), (0, 2), (2, 2)], [(0, 3)]]


def test_tokens_of_several_sequences_are_told() -> None:
    batch = Batch()
    batch.add(0, 0, (0, 1))
    (runs,) = split(batch, 512)
    made = UBatch.of(runs, unified=True)
    assert made.is_shared
    np.testing.assert_array_equal(made.seqs, [0])


@pytest.mark.parametrize(
    ("histories", "seq_ids", "wrong"),
    [
        ([0, 0], [(0, 1), (0, 1), (0,), (1,)], None),
        ([0, 1], [(0, 1)], 0),
        ([0, 0], [(0,), (1,), (0, 1)], 2),
        ([0, 0, 0], [(0, 1), (2,), (0, 1)], None),
        ([0, 0, 0], [(0, 1), (0, 1, 2)], 1),
    ],
)
def test_a_token_is_of_sequences_that_share_all_before_it(
    histories: list[int], seq_ids: list[tuple[int, ...]], wrong: int | None
) -> None:
    batch = Batch()
    for seqs in seq_ids:
        batch.add(0, 0, seqs)
    if wrong is None:
        check_shared(batch, histories)
        return
    with pytest.raises(BadBatch, match=rf"token at index {wrong} .* do not share all tokens"):
        check_shared(batch, histories)

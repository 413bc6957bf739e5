"""Pages of a KV cache: which cells tokens get, what is shared, copied and used again."""

from __future__ import annotations

import statistics
from random import Random

import numpy as np
import pytest

from benchmarks.arrivals import Lengths
from ggmlpy.errors import CacheFull
from ggmlpy.memory.batch import Batch, TokenRun, split
from ggmlpy.memory.pages import PAGE_SIZE, PagedCells
from ggmlpy.memory.ubatch import UBatch
from ggmlpy.memory.window import Sight
from ggmlpy.models.memory import Window
from tests.oracle.side import check_pages
from tests.seen import seen_cells


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggmlpy.memory.pages.PAGE_SIZE", 4)


def ubatch(*runs: tuple[int, int] | tuple[tuple[int, ...], int]) -> UBatch:
    """So many tokens of each sequence, or of some sequences together."""
    made, n = [], 0
    for seqs, length in runs:
        seqs = seqs if isinstance(seqs, tuple) else (seqs,)
        made.append(TokenRun(seqs, np.arange(n, n + length)))
        n += length
    return UBatch.of(made, True)


def add(cells: PagedCells, *runs: tuple[int, int] | tuple[tuple[int, ...], int]) -> list[list[int]]:
    """The next tokens of some sequences. Returns the cells of each."""
    tokens = ubatch(*runs)
    found = cells.find(tokens)
    if found.moves is not None:
        cells.make_room(found.moves)
    positions = np.concatenate(
        [cells.pos_max(run.seqs[0]) + 1 + np.arange(len(run.index)) for run in tokens.runs]
    )
    if found.appended is not None:
        cells.append(found.appended, tokens, positions.astype(np.int32))
    else:
        for run, at in tokens.by_run():
            cells.occupy(found.cells[at], positions[at].astype(np.int32), run.seqs)
    check_pages(cells)
    return [found.cells[at].tolist() for _, at in tokens.by_run()]


def test_tokens_stay_in_the_page_until_it_is_full() -> None:
    cells = PagedCells(40, n_seq_max=3)
    assert add(cells, (0, 3), (1, 6)) == [[0, 1, 2], [4, 5, 6, 7, 8, 9]]
    assert add(cells, (0, 1), (1, 1), (2, 1)) == [[3], [10], [12]]
    assert add(cells, (0, 1), (1, 1), (2, 1)) == [[16], [11], [13]]
    assert [add(cells, (2, 1)) for _ in range(3)] == [[[14]], [[15]], [[20]]]
    assert (cells.n_pages, cells.n_pages_used(), cells.n_pages_shared()) == (10, 6, 0)
    cells.remove(1)
    assert add(cells, (0, 4)) == [[17, 18, 19, 4]]


def test_a_step_in_pages_that_have_room_looks_at_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = PagedCells(40, n_seq_max=2)
    add(cells, (0, 1), (1, 2))
    monkeypatch.setattr(PagedCells, "_find_pages", None)
    assert add(cells, (0, 2), (1, 2)) == [[1, 2], [6, 7]]


def test_a_shared_page_is_copied_by_all_but_the_last_of_its_owners() -> None:
    cells = PagedCells(40, n_seq_max=3)
    add(cells, (0, 6))
    for seq in (1, 2):
        cells.share(seq, cells.of(0))
    check_pages(cells)
    assert cells.n_pages_shared() == 2
    found = cells.find(ubatch((0, 1), (1, 1), (2, 1)))
    assert found.moves is not None
    assert [(c.seqs, c.source.tolist(), c.target.tolist()) for c in found.moves.copies] == [
        ((0,), [4, 5], [8, 9]), ((1,), [4, 5], [12, 13]),
    ]  # fmt: skip
    assert add(cells, (0, 1), (1, 1), (2, 1)) == [[10], [14], [6]]
    assert (cells.n_pages_used(), cells.n_pages_shared()) == (4, 1)
    for seq, last in enumerate((8, 12, 4)):
        assert seen_cells(cells, seq, 9)[0].tolist() == [0, 1, 2, 3, last, last + 1, last + 2]


def test_full_shared_pages_are_not_copied() -> None:
    cells = PagedCells(40, n_seq_max=2)
    add(cells, (0, 8))
    cells.share(1, cells.of(0))
    assert add(cells, (1, 1)) == [[8]]
    assert cells.references().tolist() == [2, 2, 1, *[0] * 7]


def test_tokens_of_several_sequences_go_into_a_page_of_just_these() -> None:
    cells = PagedCells(40, n_seq_max=3)
    add(cells, (0, 2))
    for seq in (1, 2):
        cells.share(seq, cells.of(0))
    assert cells.find(ubatch(((0, 1, 2), 3))).cells.tolist() == [2, 3, 4]
    found = cells.find(ubatch(((0, 1), 3)))
    assert found.moves is not None
    assert [c.target.tolist() for c in found.moves.copies] == [[4, 5]]
    assert found.cells.tolist() == [6, 7, 8]


def test_sequences_with_copies_of_a_page_take_tokens_together_in_another() -> None:
    cells = PagedCells(40, n_seq_max=3)
    add(cells, (0, 6))
    for seq in (1, 2):
        cells.share(seq, cells.of(0))
    assert add(cells, (1, 1)) == [[10]]  # in a copy of the second page
    assert len(set(cells.by_sequence())) == 2
    cells.remove(1, 6)
    assert cells.of(1).tolist() == [0, 1, 2, 3, 8, 9]
    assert len(set(cells.by_sequence())) == 1
    assert add(cells, ((0, 1), 2)) == [[12, 13]]
    assert cells.of(0).tolist() == [0, 1, 2, 3, 4, 5, 12, 13]
    assert cells.of(1).tolist() == [0, 1, 2, 3, 8, 9, 12, 13]
    check_pages(cells)
    assert add(cells, ((0, 1), 1)) == [[14]]
    assert add(cells, (0, 1)) == [[19]]  # 12 to 14 are copied to 16 to 18
    zero, one, two = cells.by_sequence()
    assert zero != one != two
    cells.remove(0, 9)
    zero, one, two = cells.by_sequence()
    assert zero == one != two


def test_tokens_of_sequences_together_and_of_each_come_at_once() -> None:
    cells = PagedCells(40, n_seq_max=2)
    add(cells, (0, 2))
    cells.share(1, cells.of(0))
    assert add(cells, (0, 1), ((0, 1), 1), (1, 1)) == [[4], [2], [8]]
    assert cells.of(0).tolist() == [0, 1, 2, 4]
    assert cells.of(1).tolist() == [0, 1, 2, 8]


@pytest.mark.parametrize(
    "order",
    [
        [(0, 1), (0,)],
        [(0, 1), (1,)],
        [(0, 1), (0,), (1,)],
        [(0, 1), (0, 1), (0,)],
        [(0, 1), (0, 1), (0,), (1,)],
        [(0, 1), (0,), (0,), (1,), (1,)],
        [(0, 1), (0,), (2,), (0,), (1,)],
        [(0, 1, 2), (0, 1), (2,), (0,), (0,)],
    ],
    ids=str,
)
@pytest.mark.parametrize("n_before", [3, 4, 6])
def test_each_token_of_a_ubatch_has_a_cell_of_just_its_sequences(
    order: list[tuple[int, ...]], n_before: int
) -> None:
    """In whichever order the runs of a batch as users add it are looked at."""
    cells = PagedCells(40, n_seq_max=3)
    add(cells, (0, n_before))
    for seq in (1, 2):
        cells.share(seq, cells.of(0))
    batch, ends = Batch(), [n_before] * 3
    for seqs in order:
        batch.add(0, ends[seqs[0]], seqs)
        for seq in seqs:
            ends[seq] += 1
    (runs,) = split(batch, 16)
    tokens = UBatch.of(runs, True)
    found = cells.find(tokens)
    if found.moves is not None:
        cells.make_room(found.moves)
    positions = np.array(batch.positions, np.int32)[tokens.index]
    for run, at in tokens.by_run():
        cells.occupy(found.cells[at], positions[at], run.seqs)
    check_pages(cells)
    for cell, i in zip(found.cells.tolist(), tokens.indices, strict=True):
        assert tuple(seq for seq in range(3) if cell in cells.of(seq)) == batch.seq_ids[i]
    for seq, end in enumerate(ends):
        assert sorted(cells.positions_of(seq, cells.of(seq)).tolist()) == list(range(end))


def test_a_page_that_was_copied_is_left_to_its_other_owner() -> None:
    """Even where all others are full."""
    cells = PagedCells(8, n_seq_max=2)
    add(cells, (0, 2))
    cells.share(1, cells.of(0))
    with pytest.raises(CacheFull):
        cells.find(ubatch((0, 3), (1, 1)))
    assert add(cells, (0, 2), (1, 2)) == [[6, 7], [2, 3]]


@pytest.mark.parametrize("change", ["write", "move"])
def test_what_is_no_copy_any_more_is_another_token(change: str) -> None:
    cells = PagedCells(40, n_seq_max=2)
    add(cells, (0, 6))
    cells.share(1, cells.of(0))
    add(cells, (1, 1))
    if change == "write":
        cells.remove(1, 5)
        add(cells, (1, 1))
        cells.remove(0, 6)
    else:
        cells.remove(1, 6)
        own = cells.of(1, 4)
        cells.move(1, own, np.array([5, 6], np.int32))
        cells.move(1, own, np.array([4, 5], np.int32))  # K was rotated twice
    assert cells.pos_max(0) == cells.pos_max(1)
    assert len(set(cells.by_sequence())) == 2


def test_pages_come_back_when_the_last_owner_leaves() -> None:
    cells = PagedCells(40, n_seq_max=2)
    add(cells, (0, 8))
    cells.share(1, cells.of(0, 0, 6))
    cells.remove(0)
    check_pages(cells)
    assert cells.n_pages_used() == 2
    assert add(cells, (1, 1)) == [[6]]  # now its own page
    cells.remove(1)
    assert cells.free_pages().tolist() == list(range(10))


def test_holes_are_used_when_there_are_no_more_pages() -> None:
    cells = PagedCells(12, n_seq_max=2)
    add(cells, (0, 8))
    cells.remove(0, 1, 3)
    assert add(cells, (0, 4)) == [[8, 9, 10, 11]]
    assert add(cells, (0, 1)) == [[1]]
    assert seen_cells(cells, 0, 20)[0].tolist() == [0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1]
    with pytest.raises(CacheFull):  # cell 2 is in a page of sequence 0
        cells.find(ubatch((1, 1)))
    assert (cells.n_free(0), cells.n_free(1)) == (1, 0)
    assert add(cells, (0, 1)) == [[2]]


def test_pages_behind_every_window_are_used_again() -> None:
    cells = PagedCells(16, n_seq_max=2, sight=Sight(Window(5)))
    add(cells, (0, 16))
    cells.share(1, cells.of(0, 4, 9))
    check_pages(cells)
    assert add(cells, (0, 2)) == [[0, 1]]  # of 5 to 8 sequence 1 still sees some
    assert [str(cells.evicted(seq)) for seq in (0, 1)] == ["0 to 3", ""]
    with pytest.raises(CacheFull):
        add(cells, (0, 3))
    cells.remove(1)
    assert add(cells, (0, 3)) == [[2, 3, 4]]
    assert [str(cells.evicted(seq)) for seq in (0, 1)] == ["0 to 7", ""]
    assert seen_cells(cells, 0, 20)[0].tolist() == [0, 1, 2, 3, 4]


def test_who_holds_which_pages_is_in_the_message_of_a_full_cache() -> None:
    paged = PagedCells(16, n_seq_max=4)
    add(paged, (0, 5), (1, 1))
    paged.share(2, paged.of(0, 0, 4))
    message = (
        "8 more tokens of sequence 3 do not fit: 3 of 4 pages of 4 cells are in use, 2 pages by"
        " sequence 0, 1 pages by sequence 1, 1 pages by sequence 2, 1 shared"
    )
    with pytest.raises(CacheFull) as caught:
        add(paged, (3, 8))
    assert str(caught.value) == message


def test_a_request_starts_where_there_are_pages_for_it() -> None:
    cells = PagedCells(40, n_seq_max=3)
    add(cells, (0, 12))
    cells.share(1, cells.of(0))
    assert cells.has_room({0: 13, 1: 13}, 20)  # 3 pages once, one more of each, 5
    assert not cells.has_room({0: 13, 1: 13}, 21)
    assert not cells.has_room({0: 13, 1: 17}, 20)
    assert cells.has_room({0: 13}, 24)


def test_half_a_page_of_each_sequence_is_wasted(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 16 requests at a time, of lengths as in benchmarks/mixture.py: within 4 %."""
    monkeypatch.setattr("ggmlpy.memory.pages.PAGE_SIZE", PAGE_SIZE)  # that of users
    lengths, rng = Lengths(64, 64, 0.8, 1024), Random(7)
    cells = PagedCells(16 * 1024, n_seq_max=16)
    left: dict[int, int] = {}
    shares = []
    for _ in range(600):
        runs = [(seq, 1) for seq in left]
        for seq in set(range(16)) - left.keys():
            n_prompt, left[seq] = lengths.draw(rng)
            runs.append((seq, n_prompt))
        add(cells, *runs)
        shares.append(1 - cells.n_used() / (cells.n_pages_used() * cells.page_size))
        for seq, _ in runs:
            left[seq] -= 1
            if left[seq] == 0:
                del left[seq]
                cells.remove(seq)
    assert 0.01 < statistics.fmean(shares) < 0.04


def test_room_is_left_for_the_copies_of_shared_pages() -> None:
    """Four sequences share half a page: three of them get a copy of it when all go on."""
    cells = PagedCells(20, 4)
    add(cells, (0, 2))
    for seq in range(1, 4):
        cells.share(seq, cells.of(0))
    grown = dict.fromkeys(range(4), 4)
    assert cells.has_room(grown, 4)
    assert not cells.has_room(grown, 5)
    add(cells, (0, 1), (1, 1), (2, 1), (3, 1))
    assert cells.n_pages_used() == 4


def test_tokens_of_several_sequences_come_before_those_of_each() -> None:
    """Else the one would copy the page that both can still share, and there are only two."""
    cells = PagedCells(8, 2)
    add(cells, ((0, 1), 2))
    found = cells.find(ubatch((0, 1), ((0, 1), 1)))
    assert (found.cells.tolist(), found.moves) == ([4, 2], None)

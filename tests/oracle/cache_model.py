"""A model of the memory of sequences, made of dicts: which tokens each token attends to.

It has no arrays, no numbered cells and no masks. A sequence is a dict from entries (K and V of one
token) to positions; sequences of one stream may hold the same entry. Operations raise the error
that the memory must raise. An operation that raises may leave the model partly changed, so try it
on a `copy`.

The memory chooses which entries a full stream with a window evicts, of those that are not visible
to later tokens. `evict` gets the choice and checks it. The model keeps evicted entries, as an
unlimited memory would: no operation may make one visible again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from typing import Literal

from ggmlpy.errors import ArgumentError, BadBatch, CacheFull, Unsupported
from ggmlpy.memory.batch import Batch

Seen = Counter[tuple[int, int]]  # visible entries as (token, position)
Fits = Literal["yes", "maybe", "no"]  # maybe: it depends on what the memory has evicted


@dataclass(eq=False, slots=True)
class Entry:
    """K and V of one token, computed or copied; compared by identity."""

    token: int
    copied: Entry | None = None  # of which it is a copy that differs in nothing


@dataclass
class LayersModel:
    """The contents of the layers of one kind.

    `held[seq]` has the position of each entry that the sequence holds, `evicted[seq]` those of
    entries that were evicted.
    """

    n_cells: int  # of one stream
    window: int | None  # None: full attention
    unified: bool
    held: list[dict[Entry, int]]
    evicted: list[dict[Entry, int]]

    def copy(self) -> LayersModel:
        held = [dict(entries) for entries in self.held]
        evicted = [dict(entries) for entries in self.evicted]
        return LayersModel(self.n_cells, self.window, self.unified, held, evicted)

    def sees(self, seq: int, position: int) -> Seen:
        """The entries that are visible to a token of the sequence at a position."""
        return Counter(
            (entry.token, at)
            for entry, at in self.held[seq].items()
            if at <= position and (self.window is None or at > position - self.window)
        )

    def is_kept(self, at: int, last: int) -> bool:
        """Whether a sequence that ends at `last` needs the entry at a position to continue.

        It does if the entry is visible to the next token, and for the last entry, whose position
        is that of the sequence.
        """
        return self.window is None or at > last + 1 - self.window or at == last

    def missed(self, seq: int) -> set[int]:
        """Positions that the sequence needs to continue, but that were evicted."""
        gone = self.evicted[seq].values()
        last = max(*gone, *self.held[seq].values(), -1, -1)
        return {at for at in gone if self.is_kept(at, last)}

    def refuse_missed(self, seq: int) -> None:
        if self.missed(seq):
            raise Unsupported

    def contents(self, seq: int) -> Seen:
        return Counter((entry.token, at) for entry, at in self.held[seq].items())

    def history(self, seq: int) -> set[tuple[Entry, int]]:
        """What a sequence holds and where, equal for those that hold copies of the same."""
        return {(entry.copied or entry, at) for entry, at in self.held[seq].items()}

    def last(self, seq: int) -> int:
        return max(self.held[seq].values(), default=-1)

    def first(self, seq: int) -> int:
        return min(self.held[seq].values(), default=-1)

    def stream(self, seq: int) -> list[int]:
        """The sequences that share cells with `seq`, itself among them."""
        return list(range(len(self.held))) if self.unified else [seq]

    def n_used(self, seq: int) -> int:
        """Cells in use in the sequence's stream: one per entry, however many sequences hold it."""
        return len({entry for other in self.stream(seq) for entry in self.held[other]})

    def visible(self, seq: int) -> set[Entry]:
        """Entries of the sequence's stream that some sequence needs to continue."""
        return {
            entry
            for other in self.stream(seq)
            for entry, at in self.held[other].items()
            if self.is_kept(at, self.last(other))
        }

    def fits(self, seq: int, n_tokens: int, n_ubatch: int | None = None) -> Fits:
        """Whether `n_tokens` more fit in the sequence's stream, at once or in ubatches."""
        if n_tokens == 0 or self.n_used(seq) + n_tokens <= self.n_cells:
            return "yes"
        if len(self.visible(seq)) + n_tokens <= self.n_cells:
            return "yes"
        if n_ubatch is None or self.window is None or n_tokens == 1:
            return "no"
        # Entries that are visible between ubatches, if no position is held twice.
        others = self.stream(seq)
        crowded = any(len(set(self.held[s].values())) < len(self.held[s]) for s in others)
        enough = self.n_cells >= len(others) * max(self.window - 1, 1) + n_ubatch
        return "yes" if enough and not crowded else "maybe"

    def remove(self, seq: int, start: int, stop: int | None) -> None:
        for entries in (self.held, self.evicted):
            left = {e: at for e, at in entries[seq].items() if not _within(at, start, stop)}
            entries[seq] = left

    def copy_entries(self, source: int, target: int, start: int, stop: int | None) -> None:
        """Raises CacheFull if another stream has too few cells for the copies."""
        # Each a new entry: the target may have evicted the same one at another position.
        evicted = self.evicted[source].items()
        gone = {Entry(e.token): at for e, at in evicted if _within(at, start, stop)}
        copied = {e: at for e, at in self.held[source].items() if _within(at, start, stop)}
        self.remove(target, start, stop)
        if not self.unified:
            if self.fits(target, len(copied)) == "no":
                raise CacheFull
            copied = {Entry(e.token): at for e, at in copied.items()}
        self.held[target] |= copied
        self.evicted[target] |= gone

    def refuse_copy(self, source: int, target: int, start: int, stop: int | None) -> None:
        """Raise Unsupported if the target could not continue after the copy."""
        after = LayersModel(1 << 30, self.window, self.unified, [], [])
        after.held, after.evicted = self.copy().held, self.copy().evicted
        after.copy_entries(source, target, start, stop)
        after.refuse_missed(target)

    def move(
        self, seq: int, start: int, stop: int | None, where: Callable[[int], int], may_meet: bool
    ) -> None:
        """Change positions. Entries that other sequences hold too are copied; none are evicted."""
        held = self.held[seq]
        moved = {e: where(at) for e, at in held.items() if _within(at, start, stop)}
        gone = self.evicted[seq]
        gone_moved = {e: where(at) for e, at in gone.items() if _within(at, start, stop)}
        stay = {at for e, at in (held | gone).items() if not _within(at, start, stop)}
        if not may_meet and stay & set((moved | gone_moved).values()):
            raise ArgumentError
        result = {e: at for e, at in held.items() if e not in moved}
        to_copy = []
        for entry, at in moved.items():
            others = [s for s in self.stream(seq) if s != seq and entry in self.held[s]]
            if at >= 0 and at != held[entry] and others:
                to_copy.append((entry, at))
            elif at >= 0:
                result[entry if at == held[entry] else Entry(entry.token)] = at
        self.held[seq] = result
        if to_copy and self.n_used(seq) + len(to_copy) > self.n_cells:
            raise CacheFull
        self.held[seq] |= {Entry(entry.token): at for entry, at in to_copy}
        self.evicted[seq] = {e: at for e, at in (gone | gone_moved).items() if at >= 0}
        self.refuse_missed(seq)

    def evict(self, seq: int, kept: Seen) -> int:
        """Evict the sequence's entries that are not in `kept`, and return their number.

        Fails if one of them is visible to a later token.
        """
        left, gone = Counter(kept), []
        for entry, at in self.held[seq].items():
            if left[entry.token, at]:
                left[entry.token, at] -= 1
            else:
                gone.append(entry)
        assert not +left, f"sequence {seq} holds (token, position) {+left}, which it should not"
        lost = [self.held[seq][entry] for entry in gone if entry in self.visible(seq)]
        assert not lost, f"sequence {seq} lost positions {lost}, which are visible to later tokens"
        for entry in gone:
            for other in self.stream(seq):
                if entry in self.held[other]:
                    self.evicted[other][entry] = self.held[other].pop(entry)
        return len(gone)


def _check_range(start: int, stop: int | None) -> None:
    """Raise ArgumentError for a range that ends before it starts; a negative bound is open."""
    if stop is not None and 0 <= stop < start:
        raise ArgumentError


def _within(position: int, start: int, stop: int | None) -> bool:
    return position >= start and (stop is None or position < stop)


@dataclass(frozen=True)
class SavedModel:
    """A saved state: for each kind of layers the (token, position) held and those left out, and
    the tokens in the recurrent state."""

    layers: list[tuple[list[tuple[int, int]], list[tuple[int, int]]]]
    taken_in: tuple[int, ...]


@dataclass
class MemoryModel:
    """The whole memory: layers of each kind, and the tokens in the recurrent states."""

    n_vocab: int
    n_ubatch: int
    layers: list[LayersModel]
    taken_in: list[tuple[int, ...]] | None  # per sequence; None without recurrent layers

    def copy(self) -> MemoryModel:
        other = copy(self)
        other.layers = [part.copy() for part in self.layers]
        other.taken_in = None if self.taken_in is None else list(self.taken_in)
        return other

    @property
    def n_seq_max(self) -> int:
        return len(self.layers[0].held)

    @property
    def unified(self) -> bool:
        return self.layers[0].unified

    def seq_pos_max(self, seq: int) -> int:
        return self.layers[0].last(seq)

    def seq_pos_min(self, seq: int) -> int:
        """The lowest position that all layers hold."""
        return max(part.first(seq) for part in self.layers)

    def tokens_held(self) -> set[int]:
        return {e.token for part in self.layers for held in part.held for e in held}

    # --- operations ---

    def decode(self, batch: Batch) -> tuple[list[list[Seen]], Fits]:
        """The visible entries of each token in each kind of layers; and whether the batch fits."""
        before = self.copy()
        if not batch.tokens:
            raise BadBatch
        entries = list(zip(batch.tokens, batch.positions, batch.seq_ids, strict=True))
        for token, position, seqs in entries:
            self._take_in(token, position, seqs)
        seen = [[part.sees(seqs[0], at) for part in self.layers] for _, at, seqs in entries]
        fits = set()
        for seq in {0} if self.unified else {seqs[0] for _, _, seqs in entries}:
            n_tokens = sum(self.unified or seqs[0] == seq for _, _, seqs in entries)
            fits |= {part.fits(seq, n_tokens, self.n_ubatch) for part in before.layers}
        return seen, "no" if "no" in fits else "maybe" if "maybe" in fits else "yes"

    def _take_in(self, token: int, position: int, seqs: tuple[int, ...]) -> None:
        if not 0 <= token < self.n_vocab or not seqs or len(set(seqs)) < len(seqs):
            raise BadBatch
        for seq in seqs:
            if not 0 <= seq < self.n_seq_max:
                raise BadBatch
            if position != self.seq_pos_max(seq) + 1:
                raise BadBatch
        if len(seqs) > 1 and (not self.unified or self.taken_in is not None):
            raise Unsupported
        for part in self.layers:
            if any(part.history(seq) != part.history(seqs[0]) for seq in seqs):
                raise BadBatch  # other entries would be visible in each sequence
            entry = Entry(token)
            for seq in seqs:
                part.held[seq][entry] = position
        if self.taken_in is not None:
            self.taken_in[seqs[0]] += (token,)

    def seq_rm(self, seq: int, start: int, stop: int | None) -> None:
        seqs: Iterable[int] = range(self.n_seq_max) if seq == -1 else (seq,)
        for each in seqs:
            self._check(each)
            self._whole_or_nothing(each, start, stop)
        for each in seqs:
            for part in self.layers:
                part.remove(each, start, stop)
                part.refuse_missed(each)
            if self.taken_in is not None and self.seq_pos_max(each) < 0:
                self.taken_in[each] = ()

    def seq_cp(self, source: int, target: int, start: int = 0, stop: int | None = None) -> None:
        self._check(source)
        self._check(target)
        if source == target:
            return
        self._whole_or_nothing(source, start, stop)
        self._whole_or_nothing(target, start, stop)
        for part in self.layers:
            part.refuse_copy(source, target, start, stop)
        for part in self.layers:
            part.copy_entries(source, target, start, stop)
        if self.taken_in is not None:
            if self.layers[0].held[source] and start <= 0 and (stop is None or stop > 0):
                self.taken_in[target] = self.taken_in[source]
            elif not self.layers[0].held[target]:
                self.taken_in[target] = ()

    def seq_keep(self, seq: int) -> None:
        self._check(seq)
        for other in set(range(self.n_seq_max)) - {seq}:
            self.seq_rm(other, 0, None)

    def clear(self) -> None:
        self.seq_rm(-1, 0, None)

    def seq_add(self, seq: int, start: int, stop: int | None, delta: int) -> None:
        _check_range(start, stop)
        self._move(seq, start, stop, lambda at: at + delta, may_meet=False)

    def seq_div(self, seq: int, start: int, stop: int | None, divisor: int) -> None:
        if divisor < 1:
            raise ArgumentError
        _check_range(start, stop)
        self._move(seq, start, stop, lambda at: at // divisor, may_meet=True)

    def _move(
        self, seq: int, start: int, stop: int | None, where: Callable[[int], int], may_meet: bool
    ) -> None:
        self._check(seq)
        if self.taken_in is not None:
            raise Unsupported
        for part in self.layers:
            part.move(seq, start, stop, where, may_meet)

    def take_state(self, seq: int) -> SavedModel:
        """Of layers with a window, only entries that are needed to continue are kept."""
        self._check(seq)
        layers = []
        for part in self.layers:
            rows: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
            for entry, at in part.held[seq].items():
                rows[not part.is_kept(at, part.last(seq))].append((entry.token, at))
            rows[1].extend((entry.token, at) for entry, at in part.evicted[seq].items())
            layers.append(rows)
        return SavedModel(layers, () if self.taken_in is None else self.taken_in[seq])

    def put_state(self, seq: int, saved: SavedModel) -> None:
        self._check(seq)
        for part, (rows, gone) in zip(self.layers, saved.layers, strict=True):
            part.remove(seq, 0, None)
            if part.fits(seq, len(rows)) == "no":
                raise CacheFull
            part.held[seq] = {Entry(token): at for token, at in rows}
            part.evicted[seq] = {Entry(token): at for token, at in gone}
        if self.taken_in is not None:
            self.taken_in[seq] = saved.taken_in

    def _check(self, seq: int) -> None:
        if not 0 <= seq < self.n_seq_max:
            raise ArgumentError

    def _whole_or_nothing(self, seq: int, start: int, stop: int | None) -> None:
        """Raise Unsupported for a part of a sequence, which a recurrent state cannot remove."""
        n_past = self.seq_pos_max(seq) + 1
        n_within = sum(_within(at, start, stop) for at in range(n_past))
        if self.taken_in is not None and 0 < n_within < n_past:
            raise Unsupported

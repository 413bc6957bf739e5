"""`LlamaState`: saved sequences of a model, to be loaded again.

A state can only be loaded with the weights that made it. The options of the memory (n_ctx, streams,
K/V types, flash attention, backend) may differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ggmlpy.common.quoting import printable, quoted
from ggmlpy.errors import StateError
from ggmlpy.memory.fingerprint import Fingerprint
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.spans import Spans
from ggmlpy.memory.state import SequenceState, check_converted, check_finite, check_fits
from ggmlpy.memory.state_file import from_bytes, read_file, to_bytes, write_file
from ggmlpy.memory.window import first_kept


@dataclass(frozen=True, slots=True, repr=False)
class LlamaState:
    """Saved sequences by number. Made by `Llama.save_state`, used by `Llama.load_state`.

    Can be pickled, converted `to_bytes` and back, and written to a file.
    """

    sequences: dict[int, SequenceState]
    model: str  # the name of its file
    fingerprint: Fingerprint
    is_foreign: bool = field(default=False, compare=False)
    """Whether it was made from bytes, which may come from anywhere: then values are checked too."""

    @property
    def tokens(self) -> dict[int, list[int]]:
        """The tokens of each sequence."""
        return {seq: list(state.tokens) for seq, state in self.sequences.items()}

    def sequence(self, seq: int) -> LlamaState:
        """One of its sequences as a state of its own. Raises StateError if it is not there."""
        if seq not in self.sequences:
            held = ", ".join(map(str, self.sequences)) or "none"
            raise StateError(f"the state holds no sequence {seq!r}, it holds {held}")
        return replace(self, sequences={seq: self.sequences[seq]})

    @property
    def n_tokens(self) -> int:
        """The number of tokens of all sequences."""
        return sum(len(state.tokens) for state in self.sequences.values())

    @property
    def n_bytes(self) -> int:
        """Bytes of K, V and recurrent states."""
        return sum(state.n_bytes for state in self.sequences.values())

    def to_bytes(self) -> bytes:
        """The state as bytes, as in a file."""
        return to_bytes(self.sequences, self._about())

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "state") -> LlamaState:
        """The state that `to_bytes` returned. Raises StateError for any other bytes."""
        return cls._from_parts(*from_bytes(data, name), name)

    def write(self, path: str | Path) -> None:
        """Write a file, completely or not at all. Raises FileError."""
        write_file(path, self.sequences, self._about())

    @classmethod
    def read(cls, path: str | Path) -> LlamaState:
        """The state in a file.

        Raises MissingFile, FileError if it cannot be read, StateError if it is no sound state file.
        """
        return cls._from_parts(*read_file(path), printable(Path(path).name))

    def check_fits(
        self, model: str, fingerprint: Fingerprint, memory: SequenceMemory, n_vocab: int
    ) -> None:
        """Raise StateError unless `model` made the state, and its parts match each other."""
        difference = self.fingerprint.difference(fingerprint)
        if difference is not None:
            raise StateError(
                f"the state was saved with {quoted(self.model)}, another model than {model}:"
                f" {difference}"
            )
        for seq, state in self.sequences.items():
            if not all(0 <= token < n_vocab for token in state.tokens):
                raise StateError(f"the state's sequence {seq} has tokens outside the vocabulary")
            _check_complete(seq, state, memory)
            check_fits(memory, state)
            check_converted(memory, state)
            if self.is_foreign:
                check_finite(state)

    def _about(self) -> dict[str, Any]:
        return {"model": self.model, "fingerprint": self.fingerprint.describe()}

    @classmethod
    def _from_parts(
        cls, sequences: dict[int, SequenceState], about: dict[str, Any], name: str
    ) -> LlamaState:
        model, fingerprint = about.get("model"), Fingerprint.parse(about.get("fingerprint"))
        if not isinstance(model, str) or fingerprint is None:
            raise StateError(f"{name}: does not say which model it belongs to")
        return cls(sequences, model, fingerprint, is_foreign=True)

    def __repr__(self) -> str:
        n = len(self.sequences)
        return (
            f"LlamaState({self.model!r}, {n} sequence{'' if n == 1 else 's'},"
            f" {self.n_tokens} tokens, {self.n_bytes} bytes)"
        )


def _check_complete(seq: int, state: SequenceState, memory: SequenceMemory) -> None:
    """Raise StateError unless a state has K and V of all tokens that the next one sees.

    Tokens before those must be evicted in it: if tokens were removed from its end, they would be
    visible again.
    """
    n_tokens = len(state.tokens)
    for cache in memory.caches:
        i = cache.store.first_layer
        rows = state.layers.get(i)
        n_rows = 0 if rows is None else len(rows.positions)
        first = n_tokens - n_rows
        if rows is None or not (
            first <= first_kept(n_tokens, cache.cells.window)
            and np.array_equal(rows.positions, np.arange(first, n_tokens))
            and rows.evicted == Spans.of(np.arange(first))
        ):
            raise StateError(
                f"the state's sequence {seq} has {n_tokens} tokens, but not the K and V of layer"
                f" {i} that belong to them"
            )

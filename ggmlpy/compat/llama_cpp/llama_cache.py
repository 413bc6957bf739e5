"""Caches of states, by the tokens that they hold. `Llama.set_cache` takes one."""

from __future__ import annotations

import hashlib
import os
import tempfile
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from ggmlpy.compat.llama_cpp.saved import LlamaState

Key = tuple[int, ...]


def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many of their first tokens two sequences have in common."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.asarray(a[:n]) != np.asarray(b[:n]))
    return int(differ[0]) if len(differ) else n


class BaseLlamaCache(ABC):
    """States by tokens. What is looked up is the state that has the longest prefix in common."""

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        self.capacity_bytes = capacity_bytes

    @property
    @abstractmethod
    def cache_size(self) -> int:
        """Bytes of all states."""

    @abstractmethod
    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """The state with the longest prefix in common. Raises KeyError if none has any."""

    @abstractmethod
    def __contains__(self, key: Sequence[int]) -> bool:
        """Whether any state has a prefix in common."""

    @abstractmethod
    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        """Keep a state; the least recently used ones go if there is no room."""


def _longest(keys: Iterable[Key], key: Key) -> Key | None:
    """The one of `keys` that has the longest prefix in common with `key`, if any has one."""
    lengths = [(longest_token_prefix(known, key), known) for known in keys]
    n, best = max(lengths, key=lambda each: each[0], default=(0, ()))
    return best if n else None


class LlamaRAMCache(BaseLlamaCache):
    """States in memory."""

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        super().__init__(capacity_bytes)
        self.cache_state: OrderedDict[Key, LlamaState] = OrderedDict()

    @property
    def cache_size(self) -> int:
        return sum(state.llama_state_size for state in self.cache_state.values())

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        best = _longest(self.cache_state, tuple(key))
        if best is None:
            raise KeyError("no state begins like these tokens")
        self.cache_state.move_to_end(best)
        return self.cache_state[best]

    def __contains__(self, key: Sequence[int]) -> bool:
        return _longest(self.cache_state, tuple(key)) is not None

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        self.cache_state[tuple(key)] = value
        self.cache_state.move_to_end(tuple(key))
        while self.cache_state and self.cache_size > self.capacity_bytes:
            self.cache_state.popitem(last=False)


LlamaCache = LlamaRAMCache


class LlamaDiskCache(BaseLlamaCache):
    """States in a folder, a file each, for this process and later ones.

    Files are replaced as a whole, and hold arrays and bytes only: nothing in them is executed.
    Those that cannot be read are left out.
    """

    def __init__(
        self, cache_dir: str = ".cache/llama_cache", capacity_bytes: int = 2 << 30
    ) -> None:
        super().__init__(capacity_bytes)
        self._folder = Path(cache_dir)
        self._folder.mkdir(parents=True, exist_ok=True)

    @property
    def cache_size(self) -> int:
        return sum(_size(path) for path in self._files())

    def _files(self) -> list[Path]:
        """The least recently used ones first."""
        return sorted(self._folder.glob("*.npz"), key=_used)

    def _file_of(self, key: Key) -> Path:
        digest = hashlib.sha256(np.array(key, np.int64).tobytes()).hexdigest()
        return self._folder / f"{digest}.npz"

    def _find(self, key: Key) -> Path | None:
        keys = {tokens: path for path in self._files() if (tokens := _key_in(path)) is not None}
        best = _longest(keys, key)
        return None if best is None else keys[best]

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        path = self._find(tuple(key))
        if path is None:
            raise KeyError("no state begins like these tokens")
        state = _read(path)
        path.touch()
        return state

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._find(tuple(key)) is not None

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        handle, name = tempfile.mkstemp(dir=self._folder, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(
                    file,
                    key=np.array(key, np.int64),
                    input_ids=value.input_ids,
                    scores=value.scores,
                    n_tokens=value.n_tokens,
                    llama_state=np.frombuffer(value.llama_state, np.uint8),
                    seed=value.seed,
                )
            Path(name).replace(self._file_of(tuple(key)))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        for path in self._files():
            if self.cache_size <= self.capacity_bytes:
                break
            path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _used(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _key_in(path: Path) -> Key | None:
    """The tokens of a file; None for a damaged one, or one that has just gone."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return tuple(arrays["key"].tolist())
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def _read(path: Path) -> LlamaState:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        state = arrays["llama_state"].tobytes()
        return LlamaState(
            input_ids=arrays["input_ids"],
            scores=arrays["scores"],
            n_tokens=int(arrays["n_tokens"]),
            llama_state=state,
            llama_state_size=len(state),
            seed=int(arrays["seed"]),
        )

"""The random numbers of one request."""

from __future__ import annotations

from typing import Any

import numpy as np


class Stream:
    """Numbers in [0, 1) of PCG64(seed), whose stream numpy guarantees."""

    __slots__ = ("_bits",)

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def uniform(self) -> float:
        """A number in [0, 1) with 53 random bits."""
        return (int(self._bits.random_raw()) >> 11) * 2.0**-53

    def undo(self) -> None:
        """The next number is the last one again."""
        self._bits.advance(-1)

    @property
    def state(self) -> Any:
        """Where the stream is; can be set."""
        return self._bits.state

    @state.setter
    def state(self, state: Any) -> None:
        self._bits.state = state

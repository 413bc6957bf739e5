"""Ends an answer behind its first call of a tool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ggmlpy.engine.options import StoppingCallback
from ggmlpy.text.tokenizer.stream import StreamDecoder
from ggmlpy.tools import AnswerParser


class FirstCall:
    """A stopping criterion for one answer, to be asked before each of its tokens.

    What would follow is none of the answer, so it need not be generated.
    """

    def __init__(
        self, parser: AnswerParser, decoder: StreamDecoder, before: StoppingCallback | None
    ) -> None:
        """`parser` is complete behind a call, and is for this alone. `before` is asked first."""
        self._parser = parser
        self._decoder = decoder
        self._before = before
        self._is_first = True

    def __call__(self, seen: Sequence[int], logits: NDArray[np.float32]) -> bool:
        """Whether the answer ends behind `seen`."""
        if self._before is not None and self._before(seen, logits):
            return True
        if not self._is_first:
            self._parser.push(self._decoder.push(seen[-1]))
        self._is_first = False
        return self._parser.is_complete

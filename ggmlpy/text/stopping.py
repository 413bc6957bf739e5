"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ggmlpy.errors import SamplingError


class StopChecker:
    """Cuts a stream of text before the first stop string.

    The results of `push` and `finish`, joined, are the text before the stop string that starts
    earliest, independent of how the text was cut into pieces; without one, all of the text. Text is
    held back only while it may be the beginning of a stop string.

    Of stop strings that start at the same position, `stopped` is the longest that has arrived; it
    does not wait for a longer one, because the text before is the same. But a complete stop string
    does wait while another one, which starts earlier, may still be completed: with "b" and "abc"
    the text "ab" is undecided.
    """

    __slots__ = ("_found", "_held", "_lines", "_n_read", "_searches", "stopped")

    def __init__(self, stop: Sequence[str], n_indent: int = 0) -> None:
        """`n_indent`: the text also ends in the first line behind another one that begins with
        fewer blanks and tabs, behind these.

        Raises SamplingError for a stop that is not a string or is empty, or a number below 0."""
        if isinstance(stop, str):
            raise SamplingError(f"stop is {stop!r}: must be a list of strings")
        for i, text in enumerate(stop):
            if not isinstance(text, str) or not text:
                raise SamplingError(f"stop[{i}] is {text!r}: must be a string that is not empty")
        self._searches = [_Search(text) for text in stop]  # for those not found yet
        self._found: tuple[int, int, str] | None = None  # start, minus its length, stop string
        self._held: deque[str] = deque()  # characters not returned yet
        if n_indent < 0:
            raise SamplingError(f"n_indent is {n_indent}: must be at least 0")
        self._lines = _Lines(n_indent) if n_indent else None
        self._n_read = 0
        self.stopped: str | None = None
        """The stop string that was found, "" for a line. Once it is set, no more text is returned.
        """

    def push(self, text: str) -> str:
        """Add the next piece, and return the text that is final now."""
        if self.stopped is not None:
            return ""
        if not self._searches and self._found is None:
            return self._indented(text)
        self._held.extend(text)
        for search in self._searches:
            end = search.feed(text)
            if end is not None:
                n = len(search.stop)
                match = (self._n_read + end - n, -n, search.stop)
                self._found = match if self._found is None else min(self._found, match)
        self._n_read += len(text)
        self._searches = [search for search in self._searches if not search.complete]
        n_pending = max((search.n_matched for search in self._searches), default=0)
        pending = self._n_read - n_pending
        if self._found is not None and self._found[0] <= pending:
            return self._cut(*self._found)
        return self._show(pending)

    def finish(self) -> str:
        """End the text, and return what was held back, up to a stop string."""
        if self.stopped is not None:
            return ""
        if self._found is not None:
            return self._cut(*self._found)
        return self._show(self._n_read)

    def _cut(self, start: int, _: int, stop: str) -> str:
        self.stopped = stop
        return self._show(start)

    def _show(self, end: int) -> str:
        """The held text, up to position `end` of the whole text."""
        n = end - (self._n_read - len(self._held))
        return self._indented("".join([self._held.popleft() for _ in range(n)]))

    def _indented(self, text: str) -> str:
        """Text up to a line with too small an indentation."""
        if self._lines is None:
            return text
        end = self._lines.feed(text)
        if end is None:
            return text
        self.stopped = ""
        return text[:end]


class _Lines:
    """Looks for a line that begins with fewer than `n_indent` blanks and tabs, an empty one too."""

    __slots__ = ("_n", "_n_indent")

    def __init__(self, n_indent: int) -> None:
        self._n_indent = n_indent
        self._n: int | None = None  # those of a line that has nothing else yet

    def feed(self, text: str) -> int | None:
        """The position in `text` behind the blanks of such a line, or None."""
        if self._n is None and "\n" not in text:
            return None
        for i, char in enumerate(text):
            if self._n is not None:
                if char in " \t":
                    self._n += 1
                    continue
                if self._n < self._n_indent:
                    return i
            self._n = 0 if char == "\n" else None
        return None


class _Search:
    """Knuth, Morris and Pratt's search, which reads each character once."""

    __slots__ = ("_shorter", "n_matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.n_matched = 0
        """The length of the longest prefix of `stop` that the text so far ends with."""
        # For each prefix of `stop`, up to the longest that was found: the longest shorter one that
        # it ends with.
        self._shorter = [0]

    @property
    def complete(self) -> bool:
        return self.n_matched == len(self.stop)

    def feed(self, text: str) -> int | None:
        """The position in `text` after the first complete stop string, or None."""
        if self.n_matched == 0 and self.stop[0] not in text:
            return None
        for i, char in enumerate(text):
            self.n_matched = self._longer(self.n_matched, char)
            if self.complete:
                return i + 1
            if self.n_matched > len(self._shorter):
                last = self.stop[len(self._shorter)]
                self._shorter.append(self._longer(self._shorter[-1], last))
        return None

    def _longer(self, n: int, char: str) -> int:
        """The new value of `n_matched` after `char`, if it was `n` before."""
        while n > 0 and self.stop[n] != char:
            n = self._shorter[n - 1]
        return n + (self.stop[n] == char)

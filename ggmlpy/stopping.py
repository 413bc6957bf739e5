"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from ggmlpy.errors import SamplingError


class StopChecker:
    """Cuts a stream of text before the first stop string.

    What `push` and `finish` return, put together, is the text before the stop string that starts
    earliest, whatever the pieces were; without one, all of the text. Only what may be the
    beginning of a stop string is held back.

    Of stop strings that start at one place, `stopped` names the longest that has arrived: nothing
    waits for a longer one, since the text to show is the same. But a stop string that is complete
    does wait while an earlier, longer one may still come true: with "b" and "abc" the text "ab"
    is undecided.
    """

    __slots__ = ("_held", "_stop", "stopped")

    def __init__(self, stop: Sequence[str]) -> None:
        """Raises SamplingError for a stop that is not a string or is empty."""
        if isinstance(stop, str):
            raise SamplingError(f"stop is {stop!r}: must be a list of strings")
        for i, text in enumerate(stop):
            if not isinstance(text, str) or not text:
                raise SamplingError(f"stop[{i}] is {text!r}: must be a string that is not empty")
        self._stop = tuple(stop)
        self._held = ""  # the end of the text so far, not shown yet
        self.stopped: str | None = None
        """The stop string that was found; once it is set, no more text is shown."""

    def push(self, text: str) -> str:
        """Take the next piece; return what can be shown now."""
        if self.stopped is not None:
            return ""
        self._held += text
        found = self._first_match()
        pending = self._pending()
        if found is not None and found[0] <= pending:
            return self._cut(*found)
        shown, self._held = self._held[:pending], self._held[pending:]
        return shown

    def finish(self) -> str:
        """The text has ended: return what was held back and is no stop string."""
        if self.stopped is not None:
            return ""
        found = self._first_match()
        if found is not None:
            return self._cut(*found)
        shown, self._held = self._held, ""
        return shown

    def _cut(self, start: int, stop: str) -> str:
        self.stopped = stop
        shown, self._held = self._held[:start], ""
        return shown

    def _first_match(self) -> tuple[int, str] | None:
        """Start and text of the earliest stop string in the held text, the longest of several."""
        starts = [(self._held.find(stop), stop) for stop in self._stop]
        matches = [match for match in starts if match[0] >= 0]
        return min(matches, key=lambda match: (match[0], -len(match[1])), default=None)

    def _pending(self) -> int:
        """Where the longest end of the held text starts that a stop string begins with."""
        n_held = len(self._held)
        n_pending = 0
        for stop in self._stop:
            # Only ends longer than the longest so far are of interest.
            for n in range(min(len(stop) - 1, n_held), n_pending, -1):
                if self._held.endswith(stop[:n]):
                    n_pending = n
                    break
        return n_held - n_pending

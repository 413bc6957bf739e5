"""How many tokens are drafted for a sequence, by how many of the last drafts were accepted.

    all accepted    twice as many, up to what the drafter gives
    some            one more than these
    none            half as many, at least one; from the third time in a row a pause, each time
                    twice as long as the one before it

A text that cannot be predicted so costs little: a draft of one token every now and then.
"""

from __future__ import annotations

from dataclasses import dataclass

_FIRST = 4  # tokens of the first draft
_N_TRIES = 3  # drafts in a row of which nothing is accepted before there is a pause
_LONGEST_PAUSE = 32  # steps


@dataclass(slots=True)
class DraftLength:
    """The length of the next draft of one sequence."""

    n: int = _FIRST
    n_wrong: int = 0  # drafts in a row of which nothing was accepted
    n_pause: int = 0  # steps left without a draft

    def next(self, n_most: int) -> int:
        """Tokens to draft for the next step, at most `n_most`; 0 in a pause, of which one step is
        over then."""
        if self.n_pause:
            self.n_pause -= 1
            return 0
        return min(self.n, n_most)

    def note(self, n_drafted: int, n_accepted: int, n_most: int) -> None:
        """Take note of how many of a draft's tokens were accepted. `n_most` are as many as a draft
        may ever have."""
        if n_accepted:
            self.n_wrong = 0
            is_whole = n_accepted == n_drafted
            self.n = min(2 * max(self.n, n_drafted) if is_whole else n_accepted + 1, n_most)
            return
        self.n = max(1, self.n // 2)
        self.n_wrong += 1
        if self.n_wrong >= _N_TRIES:
            self.n_pause = min(2 ** (self.n_wrong - _N_TRIES), _LONGEST_PAUSE)

"""Grammars that hold for parts of an answer, from a trigger on: lazy grammars, as in llama.cpp."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ggmlpy.common.log import show
from ggmlpy.errors import GrammarError, TokenizerError
from ggmlpy.grammar.matcher import Matcher
from ggmlpy.grammar.spec import Grammar

AT_START = r"\A\s*"  # in a trigger: at the beginning of the answer, or behind its reasoning
BEHIND_A_TEXT = "\x03"  # in a trigger: right behind a text of the grammar
_CUT = b"\x02"  # the answer has more text before
_N_KEPT = 160  # bytes in which a trigger is looked for
_NEVER = re.compile(rb"(?!)")


@dataclass(frozen=True, slots=True)
class LazyGrammar:
    """A grammar that holds behind a trigger: a regular expression, of Python's `re`, that is found
    in the answer. Before that, and behind a text of the grammar, the answer is free.
    """

    grammar: Grammar
    trigger: str
    begin: tuple[int, ...] = ()  # the tokens of the grammar's texts for which the trigger stands
    before: str = ""  # what the end of the prompt has of a trigger
    # The markers around the reasoning with which an answer may begin: no trigger counts in it.
    reasoning: tuple[str, str] | None = None
    thinks: bool = False  # whether the prompt ends within it
    holds: bool = False  # whether the grammar holds to the end of the answer
    looser: Callable[[], Grammar] | None = None  # makes what holds if the grammar cannot be used


class LazyMatcher:
    """Looks for the trigger in an answer, token by token."""

    __slots__ = ("_is_open", "_lazy", "_seen", "_spelt", "_start", "_tail", "_trigger")

    def __init__(
        self,
        lazy: LazyGrammar,
        spelt: Callable[[int], bytes],
        start: Callable[[bytes], Matcher | None],
    ) -> None:
        """`spelt` gives the bytes of a token in the answer; `start` a matcher behind the trigger
        and the text that follows it in the same token, None if the grammar does not have that."""
        self._lazy = lazy
        self._trigger = re.compile(lazy.trigger.encode())
        self._spelt = spelt
        self._start = start
        self._tail = lazy.before.encode()
        # Whether the reasoning goes on; None: it may begin yet.
        self._is_open = (True if lazy.thinks else None) if lazy.reasoning else False
        self._seen: tuple[int, Matcher | None, bool] | None = None  # of the last token asked about

    def allows(self, token: int) -> bool:
        """Whether a token may come next: not if it has a trigger with text behind it with which the
        grammar has no text."""
        return not self._look(token)[2]

    def accept(self, token: int) -> Matcher | None:
        """Go on behind a token. Returns the matcher, if the grammar holds from here on."""
        matcher = self._look(token)[1]
        self._seen = None
        self._tail = self._behind(self._tail + self._spelt(token))
        return matcher

    def restart(self, token: int) -> None:
        """Go on behind a text of the grammar, of which `token` is the last."""
        self._tail = BEHIND_A_TEXT.encode() + self._spelt(token)[-1:]

    def _look(self, token: int) -> tuple[int, Matcher | None, bool]:
        """A token, the matcher that begins with it, and whether the grammar forbids it."""
        if self._seen is None or self._seen[0] != token:
            self._seen = self._looked(token)
        return self._seen

    def _looked(self, token: int) -> tuple[int, Matcher | None, bool]:
        open, tail = self._reasoned(self._tail + self._spelt(token))
        found = None if open else self._trigger.search(tail)
        if found is None:
            return token, None, False
        try:
            matcher = self._start(b"" if self._lazy.holds else tail[found.end() :])
        except (GrammarError, TokenizerError) as error:
            show(f"the answer is not constrained: {error}", printed=False, level=logging.WARNING)
            self._trigger = _NEVER
            return token, None, False
        return token, matcher, matcher is None

    def _behind(self, text: bytes) -> bytes:
        """What is kept of a text in which no trigger is."""
        self._is_open, text = self._reasoned(text)
        if self._is_open is None or len(text) <= _N_KEPT:
            return text
        return _CUT + text[-_N_KEPT:]

    def _reasoned(self, text: bytes) -> tuple[bool | None, bytes]:
        """Whether the reasoning goes on behind a text, and what of it may have a trigger."""
        if self._lazy.reasoning is None or self._is_open is False:
            return False, text
        begin, end = (marker.encode() for marker in self._lazy.reasoning)
        is_open = self._is_open
        if is_open is None:
            start = text.removeprefix(self._lazy.before.encode()).lstrip()
            if not start.startswith(begin):
                return (None if begin.startswith(start) else False), text
            is_open, text = True, start[len(begin) :]
        at = text.find(end)
        return (is_open, text) if at < 0 else (False, text[at + len(end) :])


def started(matcher: Matcher, tokens: Sequence[int]) -> Matcher | None:
    """A matcher behind these tokens; None if its grammar has no text that begins with them."""
    if matcher.n_valid(tokens) < len(tokens):
        return None
    try:
        for token in tokens:
            matcher.accept(token)
    except GrammarError:
        return None
    return matcher

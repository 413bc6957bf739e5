"""Splitting text at tokens that are matched literally, before any other rule."""

from __future__ import annotations

import heapq
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ggmlpy.text.tokenizer.special import TokenType
from ggmlpy.text.tokenizer.vocabulary import Vocabulary

_SPACES = " \t\n\v\f\r"
_LITERAL = frozenset(map(int, (TokenType.USER_DEFINED, TokenType.CONTROL, TokenType.UNKNOWN)))


@dataclass(frozen=True, slots=True)
class Literal:
    """A token matched by its text, and whether it includes the spaces before or after it."""

    id: int
    text: str
    lstrip: bool = False
    rstrip: bool = False


class Partition:
    """The literal tokens of a vocabulary.

    User-defined tokens are matched in any text, control and unknown tokens only with `special`:
    otherwise a user's text could end a message or start a new one.
    """

    def __init__(self, vocab: Vocabulary, pre: str | None) -> None:
        strips = _strip_rule(vocab, pre)
        literals = [
            Literal(id, vocab.texts[id], *strips(vocab.texts[id]))
            for id, type in enumerate(vocab.types)
            if type in _LITERAL and vocab.texts[id]
        ]
        plain = [it for it in literals if vocab.types[it.id] == TokenType.USER_DEFINED]
        self._all, self._plain = Literals(literals), Literals(plain)

    def split(self, text: str, special: bool) -> list[str | int]:
        """Texts and token ids in order; no text is empty."""
        return (self._all if special else self._plain).split(text)


class Literals:
    """Splits text at literals; a longer one takes precedence over a shorter one.

    Gemma has 6,000 of them, and a search for each would take longer than the rest of tokenizing.
    Here each position at which one may begin is looked up once, independent of their number.
    """

    def __init__(self, literals: Iterable[Literal]) -> None:
        self._ranked = sorted(literals, key=lambda it: len(_utf8(it.text)), reverse=True)
        self._ranks = {literal.text: rank for rank, literal in enumerate(self._ranked)}
        self._texts = sorted(self._ranks)
        self._max_chars = max(map(len, self._texts), default=0)
        self._shorter = _longest_beginnings(self._texts)
        self._firsts = _first_chars(self._texts)

    def split(self, text: str) -> list[str | int]:
        parts: list[str | int] = []
        at = 0
        for begin, end, id in self._matches(text):
            parts += [text[at:begin], id] if at < begin else [id]
            at = end
        return [*parts, text[at:]] if at < len(text) else parts

    def _matches(self, text: str) -> list[tuple[int, int, int]]:
        """Begin, end and token of every match, in order, with the spaces that it includes."""
        begins: dict[int, list[int]] = {}  # candidates, by the rank of the literal
        ranks: list[int] = []  # a heap

        def propose(begin: int, n_chars: int) -> None:
            literal = self._longest(text[begin : begin + n_chars])
            if literal:
                rank = self._ranks[literal]
                if rank not in begins:
                    begins[rank] = []
                    heapq.heappush(ranks, rank)
                begins[rank].append(begin)

        for match in self._firsts.finditer(text):
            propose(match.start(), self._max_chars)
        taken = bytearray(len(text))
        matches: list[tuple[int, int, int]] = []
        while ranks:
            rank = heapq.heappop(ranks)
            literal, spans = self._ranked[rank], []
            n = len(literal.text)
            for begin in sorted(begins[rank]):
                free = taken.find(1, begin, begin + n) - begin
                if free < 0:
                    taken[begin : begin + n] = b"\1" * n
                    spans.append((begin, begin + n))
                elif free > 0:
                    propose(begin, free)
            matches += [(*_widened(text, taken, literal, *span), literal.id) for span in spans]
        return sorted(matches)

    def _longest(self, text: str) -> str:
        """The longest literal that `text` begins with, or ""."""
        i = bisect_right(self._texts, text)
        found = self._texts[i - 1] if i else ""
        while not text.startswith(found):  # ends with ""
            found = self._shorter[found]
        return found


def _longest_beginnings(texts: Iterable[str]) -> dict[str, str]:
    """For each of the sorted texts the longest other one that it begins with, or ""."""
    longest: dict[str, str] = {}
    open_texts: list[str] = []  # each begins with the previous one
    for text in texts:
        while open_texts and not text.startswith(open_texts[-1]):
            open_texts.pop()
        longest[text] = open_texts[-1] if open_texts else ""
        open_texts.append(text)
    return longest


def _first_chars(texts: Iterable[str]) -> re.Pattern[str]:
    """Matches a first character of the texts that is followed by a second one."""
    seconds: dict[str, set[str]] = {}
    for text in texts:
        seconds.setdefault(text[0], set()).add(text[1:2])
    ways = [
        re.escape(first) + ("" if "" in chars else f"(?=[{re.escape(''.join(chars))}])")
        for first, chars in seconds.items()
    ]
    return re.compile("|".join(ways) or "(?!)")


def _widened(
    text: str, taken: bytearray, literal: Literal, begin: int, end: int
) -> tuple[int, int]:
    """Extend a match by the spaces that the literal includes."""
    first, last = begin, end
    while literal.lstrip and first > 0 and text[first - 1] in _SPACES and not taken[first - 1]:
        first -= 1
    while literal.rstrip and last < len(text) and text[last] in _SPACES and not taken[last]:
        last += 1
    taken[first:last] = b"\1" * (last - first)
    return first, last


def _strip_rule(vocab: Vocabulary, pre: str | None) -> Callable[[str], tuple[bool, bool]]:
    """(lstrip, rstrip) of a special token by its text.

    GGUF has no such flags, so as in llama.cpp the few models with them are recognised by name.
    """
    name = str(vocab.keys.metadata.get("general.name", "")).lower()
    architecture = vocab.keys.metadata.get("general.architecture")
    if pre in ("jina-v2-de", "jina-v2-es", "jina-v2-code") or architecture in (
        "nomic-bert-moe",
        "jina-bert-v3",
    ):
        return lambda text: (text == "<mask>", False)
    if "phi-3" in name or "phi3" in name:
        return lambda text: (False, text not in ("<unk>", "<s>", "<|endoftext|>"))
    if "modern-bert" in name:
        return lambda text: (text == "[MASK]", False)
    return lambda text: (False, False)


def _utf8(text: str) -> bytes:
    return text.encode(errors="surrogateescape")

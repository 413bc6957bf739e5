"""A backtracking matcher that counts its steps, for the expressions that cut text into words.

The engine itself tells neither steps nor retries. This one tries what a plain backtracking engine
tries, in the same order and without the shortcuts of a real one, so what is linear here is linear
there. What a class such as `[\\p{Lu}&&[^\\p{Han}]]` holds is asked of the real engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from tokenizers import Regex, pre_tokenizers

# A class (of two levels at most), a property, an escape, or a character that stands for itself.
_ATOM = re.compile(
    r"\[(?:\\.|\[(?:\\.|[^\]\\])*\]|[^\]\\[])+\]|\\[pP]\{\w+\}|\\.|[^()|*+?{$]", re.S
)
_REPEAT = re.compile(r"([*+?])(\+?)|\{(\d+)(?:,(\d+))?\}")
_GROUP = re.compile(r"\((?:\?(:|i:|=|!|<=|<!))?")
_ANCHOR = re.compile(r"\\[AzGKb]|\$")


class _Class(dict[str, bool]):
    """Whether a class holds a character."""

    def __init__(self, atom: str) -> None:
        super().__init__()
        self._split = pre_tokenizers.Split(Regex(rf"\A{atom}\z"), "removed")

    def __missing__(self, char: str) -> bool:
        self[char] = not self._split.pre_tokenize_str(char)
        return self[char]


_class = cache(_Class)
_WORD = _class(r"\w")


@dataclass(frozen=True, slots=True)
class _Op:
    name: str
    """"char", "split" (go on; where that fails, `jump`), "jump", "look", ">" or an anchor."""
    jump: int = 0
    chars: _Class | None = None
    code: tuple[_Op, ...] = ()  # of a look or a possessive repeat


_Code = tuple[_Op, ...]


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern, self.at, self.fold = pattern, 0, False
        self.classes: set[str] = set()

    def alternatives(self) -> _Code:
        code = self.sequence()
        if not self.pattern.startswith("|", self.at):
            return code
        self.at += 1
        rest = self.alternatives()
        return (_Op("split", len(code) + 2), *code, _Op("jump", len(rest) + 1), *rest)

    def sequence(self) -> _Code:
        code: _Code = ()
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            code += self.repeated(self.item())
        return code

    def item(self) -> _Code:
        if anchor := _ANCHOR.match(self.pattern, self.at):
            self.at = anchor.end()
            return (_Op(anchor[0]),)
        if opened := _GROUP.match(self.pattern, self.at):
            return self.group(opened)
        atom = _ATOM.match(self.pattern, self.at)
        assert atom, self.pattern[self.at :]
        self.at = atom.end()
        name = f"(?i:{atom[0]})" if self.fold else atom[0]
        self.classes.add(name)
        return (_Op("char", chars=_class(name)),)

    def group(self, opened: re.Match[str]) -> _Code:
        outside, self.at = self.fold, opened.end()
        self.fold = outside or opened[1] == "i:"
        code = self.alternatives()
        self.at, self.fold = self.at + 1, outside
        if opened[1] in (None, ":", "i:"):
            return code
        assert len(code) == 1 or "<" not in opened[1], "one character behind"
        return (_Op(opened[1], code=code),)

    def repeated(self, code: _Code) -> _Code:
        repeat = _REPEAT.match(self.pattern, self.at)
        if repeat is None:
            return code
        self.at, n = repeat.end(), len(code)
        if repeat[1] is None:
            optional: _Code = ()
            for _ in range(int(repeat[4] or repeat[3]) - int(repeat[3])):
                optional = (_Op("split", n + len(optional) + 1), *code, *optional)
            return code * int(repeat[3]) + optional
        loop = (_Op("split", n + 2), *code, _Op("jump", -n - 1))
        greedy = {"?": (_Op("split", n + 1), *code), "*": loop, "+": code + loop}[repeat[1]]
        return (_Op(">", code=greedy),) if repeat[2] else greedy


@cache
def _parsed(pattern: str) -> tuple[_Code, list[str]]:
    parser = _Parser(pattern)
    code = parser.alternatives()
    assert parser.at == len(pattern)
    return code, sorted(parser.classes | {r"\w"} if r"\b" in pattern else parser.classes)


def classes(pattern: str, char: str) -> tuple[bool, ...]:
    """Which of the expression's classes hold the character."""
    return tuple(_class(name)[char] for name in _parsed(pattern)[1])


def cut(pattern: str, text: str) -> tuple[list[str], int]:
    """The matches and what lies between them, as the engine finds them, and the steps taken."""
    matcher = _Matcher(text)
    cuts, last_end, begin = [0], -1, 0
    while begin <= len(text):
        match = matcher.search(_parsed(pattern)[0], begin)
        if match is None:
            break
        if match == (last_end, last_end):  # no empty match where the last one ended
            begin += 1
            continue
        begin = last_end = match[1]
        cuts += match
    cuts.append(len(text))
    return [text[a:b] for a, b in pairwise(cuts) if a < b], matcher.steps


class _Matcher:
    def __init__(self, text: str) -> None:
        self.text, self.steps, self.begin = text, 0, 0

    def search(self, code: _Code, begin: int) -> tuple[int, int] | None:
        self.begin = begin
        for start in range(begin, len(self.text) + 1):
            match = self.match(code, start)
            if match is not None:
                return match
        return None

    def match(self, code: _Code, start: int) -> tuple[int, int] | None:
        """Where a match at `start` begins, or was kept from, and ends."""
        text, n = self.text, len(self.text)
        stack = [(0, start, start)]
        while stack:
            pc, at, keep = stack.pop()
            while pc < len(code):
                self.steps += 1
                op = code[pc]
                pc += 1
                if op.chars is not None:
                    if at == n or not op.chars[text[at]]:
                        break
                    at += 1
                elif op.name == "split":
                    stack.append((pc - 1 + op.jump, at, keep))
                elif op.name == "jump":
                    pc += op.jump - 1
                elif op.name == r"\K":
                    keep = at
                else:
                    end = self.look(op, at) if op.code else self.anchored(op.name, at)
                    if end is None:
                        break
                    at = end
            else:
                return keep, at
        return None

    def look(self, op: _Op, at: int) -> int | None:
        """Where matching goes on; None if it does not."""
        behind = "<" in op.name
        found = None if behind and at == 0 else self.match(op.code, at - behind)
        if op.name == ">":
            return found and found[1]
        return at if (found is None) == ("!" in op.name) else None

    def anchored(self, name: str, at: int) -> int | None:
        at_end = at == len(self.text)
        after, before = not at_end and _WORD[self.text[at]], at > 0 and _WORD[self.text[at - 1]]
        holds = {
            r"\A": at == 0,
            r"\G": at == self.begin,
            r"\z": at_end,
            r"\b": after != before,
            "$": at_end or self.text[at] == "\n",
        }
        return at if holds[name] else None

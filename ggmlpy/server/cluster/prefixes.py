"""Which replicas have seen the beginning of a prompt, and so have its K and V."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Any

_BLOCK = 128  # characters: beginnings are told apart by so many
_MOST_BLOCKS = 2**16  # that are remembered of one replica
_LONGEST = 2**16  # characters of a prompt that are looked at


class Prefixes:
    """The beginnings of prompts that were sent to each replica, as hashes of their blocks."""

    def __init__(self) -> None:
        self._seen: dict[Any, OrderedDict[int, None]] = {}  # by replica, the oldest first

    def matches(self, text: str, replicas: Collection[Any]) -> dict[Any, float]:
        """The share of a text, 0 to 1, whose beginning each replica has seen."""
        blocks = list(_blocks(text))
        found = {}
        for replica in replicas:
            seen = self._seen.get(replica, ())
            n = next((i for i, block in enumerate(blocks) if block not in seen), len(blocks))
            found[replica] = n / len(blocks) if blocks else 0.0
        return found

    def note(self, text: str, replica: Any) -> None:
        """A text was sent to a replica."""
        seen = self._seen.setdefault(replica, OrderedDict())
        for block in _blocks(text):
            seen[block] = None
            seen.move_to_end(block)
        while len(seen) > _MOST_BLOCKS:
            seen.popitem(last=False)

    def keep(self, replicas: Collection[Any]) -> None:
        """Forget all other replicas."""
        for replica in self._seen.keys() - set(replicas):
            del self._seen[replica]


def _blocks(text: str) -> Iterator[int]:
    """A hash of each block and all before it. The last one may be shorter."""
    before = 0
    for start in range(0, min(len(text), _LONGEST), _BLOCK):
        before = hash((before, text[start : start + _BLOCK]))
        yield before


def prompt_of(body: Any) -> str:
    """The text with which a request's prompt begins, whatever the API; "" where there is none."""
    if not isinstance(body, dict):
        return ""
    parts: list[str] = []
    for name in ("system", "instructions", "tools", "messages", "prompt", "input", "content"):
        if name in body:
            _flatten(body[name], parts)
    return "\n".join(parts)


def _flatten(value: Any, parts: list[str]) -> None:
    """All texts and numbers in a value, in their order."""
    if isinstance(value, dict):
        for each in value.values():
            _flatten(each, parts)
    elif isinstance(value, list):
        if value and all(isinstance(each, int) for each in value):  # token ids
            parts.append(" ".join(map(str, value)))
            return
        for each in value:
            _flatten(each, parts)
    elif isinstance(value, str):
        parts.append(value)

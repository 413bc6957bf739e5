"""Responses that are kept, so that later requests can go on from them.

They are in memory only, of a limited size together: the one that was not used for the longest goes
first. Where there are API keys, a response is there for the key that has asked for it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response, and what it answers."""

    response: dict[str, Any]
    input: list[Item]  # with the input and output of the responses before it
    owner: str  # the API key; "": anybody
    n_bytes: int  # of both as JSON

    @property
    def conversation(self) -> list[Item]:
        """The items with which a next one begins."""
        return [*self.input, *self.response["output"]]


class ResponseStore:
    """Responses by id, of at most `max_bytes` together. It belongs to one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()  # the last one is the latest

    def __len__(self) -> int:
        return len(self._stored)

    def keep(self, stored: StoredResponse) -> None:
        """Keep one, unless it alone is too large; others may have to go."""
        if stored.n_bytes > self.max_bytes:
            return
        self._stored[stored.response["id"]] = stored
        self.n_bytes += stored.n_bytes
        while self.n_bytes > self.max_bytes:
            _, oldest = self._stored.popitem(last=False)
            self.n_bytes -= oldest.n_bytes

    def find(self, id: str, owner: str) -> StoredResponse | None:
        """That with an id, which is used now; None if there is none, or not for this owner."""
        found = self._stored.get(id)
        if found is None or found.owner != owner:
            return None
        self._stored.move_to_end(id)
        return found

    def drop(self, stored: StoredResponse) -> None:
        """Forget one of them."""
        del self._stored[stored.response["id"]]
        self.n_bytes -= stored.n_bytes

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
        # Items with the latest response that has them, by owner and id.
        self._items: dict[tuple[str, str], tuple[Item, StoredResponse]] = {}

    def __len__(self) -> int:
        return len(self._stored)

    def keep(self, stored: StoredResponse) -> None:
        """Keep one, unless it alone is too large; others may have to go."""
        if stored.n_bytes > self.max_bytes:
            return
        self._stored[stored.response["id"]] = stored
        for item in stored.conversation:
            self._items[stored.owner, item["id"]] = item, stored
        self.n_bytes += stored.n_bytes
        while self.n_bytes > self.max_bytes:
            self.drop(next(iter(self._stored.values())))

    def find(self, id: str, owner: str) -> StoredResponse | None:
        """That with an id, which is used now; None if there is none, or not for this owner."""
        found = self._stored.get(id)
        if found is None or found.owner != owner:
            return None
        self._stored.move_to_end(id)
        return found

    def find_item(self, id: str, owner: str) -> Item | None:
        """The item of a response with an id; None if there is none, or not for this owner."""
        item, stored = self._items.get((owner, id), (None, None))
        if stored is not None:
            self._stored.move_to_end(stored.response["id"])
        return item

    def drop(self, stored: StoredResponse) -> None:
        """Forget one of them."""
        del self._stored[stored.response["id"]]
        self.n_bytes -= stored.n_bytes
        for item in stored.conversation:
            key = stored.owner, item["id"]
            if self._items.get(key, (None, None))[1] is stored:
                del self._items[key]

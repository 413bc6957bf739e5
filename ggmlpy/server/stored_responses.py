"""Responses that are kept, so that later requests can go on from them.

They are in memory only, as JSON, of a limited size together: the one that was not used for the
longest goes first. Where there are API keys, a response is there for the key that has asked for it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from ggmlpy.server.events import as_json

Item = dict[str, Any]
_N_ITEM_BYTES = 256  # of the index, about, for each item


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response, and what it answers."""

    id: str
    owner: str  # the API key; "": anybody
    raw: bytes  # JSON of the response, and of the items of its input
    item_ids: tuple[str, ...]  # of its input and output

    @classmethod
    def of(cls, response: dict[str, Any], input: list[Item], owner: str) -> StoredResponse:
        """`input` has the items of the responses before it too."""
        ids = tuple(item["id"] for item in (*input, *response["output"]))
        return cls(response["id"], owner, as_json([response, input]), ids)

    @property
    def n_bytes(self) -> int:
        """The memory that it takes."""
        return len(self.raw) + _N_ITEM_BYTES * (1 + len(self.item_ids))

    def read(self) -> tuple[dict[str, Any], list[Item]]:
        """The response, and the items of its input. It takes a while for long ones."""
        response, input = json.loads(self.raw)
        return response, input

    def conversation(self) -> list[Item]:
        """The items with which a next one begins. It takes a while for long ones."""
        response, input = self.read()
        return [*input, *response["output"]]


class ResponseStore:
    """Responses by id, of at most `max_bytes` together. It belongs to one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()  # the last one is the latest
        # The latest response that has an item, by owner and the item's id.
        self._of_items: dict[tuple[str, str], StoredResponse] = {}

    def __len__(self) -> int:
        return len(self._stored)

    def keep(self, stored: StoredResponse) -> None:
        """Keep one, unless it alone is too large; others may have to go."""
        if stored.n_bytes > self.max_bytes:
            return
        self._stored[stored.id] = stored
        self._of_items |= {(stored.owner, id): stored for id in stored.item_ids}
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

    def find_with(self, item_id: str, owner: str) -> StoredResponse | None:
        """One that has an item; None if there is none, or not for this owner."""
        found = self._of_items.get((owner, item_id))
        if found is not None:
            self._stored.move_to_end(found.id)
        return found

    def drop(self, stored: StoredResponse) -> None:
        """Forget one of them, unless it is forgotten."""
        if self._stored.get(stored.id) is not stored:
            return
        del self._stored[stored.id]
        self.n_bytes -= stored.n_bytes
        for id in stored.item_ids:
            if self._of_items.get((stored.owner, id)) is stored:
                del self._of_items[stored.owner, id]

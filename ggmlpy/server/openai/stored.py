"""GET and DELETE /v1/responses/{id}, and GET /v1/responses/{id}/input_items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ggmlpy.server.endpoint import Call
from ggmlpy.server.errors import ApiError, invalid
from ggmlpy.server.fields import one_of, text
from ggmlpy.server.stored_responses import Item, StoredResponse

_MOST_ITEMS = 100  # of one page
_ORDER = one_of("asc", "desc")


async def stored_response(call: Call) -> dict[str, Any]:
    """A response that is kept, or without it that it is deleted."""
    found = _found(call)
    if call.request.method == "DELETE":
        call.service.responses.drop(found)
        return {"id": found.id, "object": "response", "deleted": True}
    if call.request.query_params.get("stream", "false") != "false":
        raise invalid("stream", "stream is not supported here: the response is complete")
    response, _ = await call.in_pool(found.read)
    return response


async def input_items(call: Call) -> dict[str, Any]:
    """The items that a response has answered, page by page, the last one first unless asked."""
    query = call.request.query_params
    _, items = await call.in_pool(_found(call).read)
    if _ORDER("order", query.get("order", "desc")) == "desc":
        items = items[::-1]
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= _MOST_ITEMS):
        raise invalid("limit", f"limit is {limit:.20}: it must be from 1 to {_MOST_ITEMS}")
    after = query.get("after")
    start = 0 if after is None else _place(items, after) + 1
    page = items[start : start + int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + len(page) < len(items),
    }


def _place(items: Sequence[Item], id: str) -> int:
    for i, item in enumerate(items):
        if item["id"] == id:
            return i
    raise invalid("after", f"after is {id:.80}: the response has no such item")


def _found(call: Call) -> StoredResponse:
    id = call.request.path_params["id"]
    found = call.service.responses.find(id, owner_of(call))
    if found is None:
        raise ApiError(404, f"there is no response {id:.80}: {_why(call)}", param="response_id")
    return found


def owner_of(call: Call) -> str:
    """Whose the responses of a request are."""
    return call.client if call.settings.api_keys else ""


async def before(call: Call, id: str | None) -> list[Item]:
    """The items of the response that a request goes on from. Raises ApiError."""
    if id is None:
        return []
    found = call.service.responses.find(id, owner_of(call))
    if found is None:
        raise invalid(
            "previous_response_id",
            f"there is no response {id:.80}: {_why(call)}",
            "previous_response_not_found",
        )
    return await call.in_pool(found.conversation)


def _why(call: Call) -> str:
    most = call.service.responses.max_bytes
    if not most:
        return "this server keeps none, send the whole conversation as input"
    return f"this server keeps the latest in {most / 2**20:g} MiB of memory, unless store is false"


async def with_items(call: Call) -> dict[str, Any]:
    """The body of a call, with the items to which its input refers. Raises ApiError."""
    given = call.body.get("input")
    if not isinstance(given, list) or not any(map(_is_reference, given)):
        return call.body
    items: dict[str, Item] = {}  # of the responses that have those that are referred to
    for i, item in enumerate(given):
        if not _is_reference(item):
            continue
        id = text(f"input[{i}].id", item.get("id"))
        if id in items:
            continue
        found = call.service.responses.find_with(id, owner_of(call))
        if found is None:
            raise invalid(f"input[{i}].id", f"there is no item {id:.80}: {_why(call)}")
        items |= {each["id"]: each for each in await call.in_pool(found.conversation)}
    made = [items[each["id"]] if _is_reference(each) else each for each in given]
    return {**call.body, "input": made}


def _is_reference(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "item_reference"


async def keep(call: Call, response: dict[str, Any], input_items: Callable[[], list[Item]]) -> None:
    """Keep a response and its input."""

    def made() -> StoredResponse:
        return StoredResponse.of(response, input_items(), owner_of(call))

    call.service.responses.keep(await call.in_pool(made))

"""Reads the body of a request: JSON of a limited size, in a limited time."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

from starlette.types import Receive, Scope

from ggmlpy.server.errors import ApiError, invalid
from ggmlpy.server.settings import Settings


class ClientGone(Exception):
    """The client has closed the connection."""


async def read_body(scope: Scope, receive: Receive, settings: Settings) -> bytes:
    """The bytes of a body. Raises ApiError for one that is encoded, too large or too slow,
    ClientGone."""
    most = settings.max_body_bytes
    headers = dict(scope["headers"])
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
    if encoding.lower() not in ("", "identity"):
        raise ApiError(
            415, f"the body is encoded as {encoding:.40}: it must be JSON as it is, in UTF-8"
        )
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > most:
        raise _too_large(most)
    parts: list[bytes] = []
    n = 0
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                n += len(part)
                if n > most:
                    raise _too_large(most)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise ApiError(
            408,
            f"the body did not arrive within {settings.body_timeout_s:g} s",
            headers={"Connection": "close"},
        ) from None


def _too_large(most: int) -> ApiError:
    return ApiError(
        413,
        f"the body is larger than {most:,} bytes, the most that this server takes",
        headers={"Connection": "close"},
    )


def parse_body(raw: bytes, what: str = "the body") -> dict[str, Any]:
    """The JSON object in a body. Raises ApiError, which says `what` is wrong."""
    data = _parse(raw, what, "object")
    if not isinstance(data, dict):
        raise invalid(None, f"{what} is {_name_of(data)}: it must be a JSON object")
    if _may_have_half(raw):
        for name, value in data.items():
            if _has_half(name) or _has_half(value):
                raise invalid(name, f"{name} has half of a surrogate pair, which is no character")
    return data


def parse_list(raw: bytes) -> list[Any]:
    """The JSON list in a body. Raises ApiError."""
    data = _parse(raw, "the body", "list")
    if not isinstance(data, list):
        raise invalid(None, f"the body is {_name_of(data)}: it must be a JSON list")
    if _may_have_half(raw) and _has_half(data):
        raise invalid(None, "the body has half of a surrogate pair, which is no character")
    return data


def _may_have_half(raw: bytes) -> bool:
    """Whether there may be a surrogate: UTF-8 has none, so it must be written as \\ud800."""
    return b"\\ud" in raw or b"\\uD" in raw


def _has_half(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _parse(raw: bytes, what: str, kind: str) -> Any:
    if not raw.strip():
        raise invalid(None, f"{what} is empty: it must be a JSON {kind}")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(None, f"{what} is not UTF-8: byte {error.start} cannot be read") from None
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise invalid(
            None, f"{what} is not JSON: {error.msg}, line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise invalid(None, f"{what} has lists and objects in each other, too deep") from None
    except ValueError as error:  # a number of thousands of digits
        raise invalid(None, f"{what} is not JSON that can be used: {error}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits:.40} is larger than any f64")
    return value


def _name_of(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        type(None): "null",
    }
    return names.get(type(value), "a number")

"""GET / and GET /page/…: the files of the page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from starlette.responses import Response

from ggmlpy.server.endpoint import Call
from ggmlpy.server.errors import ApiError

_FOLDER = Path(__file__).with_name("static")
_INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Cache-Control": "no-cache",  # kept, and asked for again with its ETag
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class _Asset:
    content: bytes
    media_type: str
    etag: str


async def index(call: Call) -> Response:
    """The page. Raises ApiError, 404, where the server has none."""
    if not call.settings.page:
        raise ApiError(404, "this server has no page: it was started with --no-ui")
    return _respond(call, _INDEX)


async def asset(call: Call) -> Response:
    """A file of the page. Raises ApiError, 404, for others."""
    name = call.request.path_params["name"]
    if not call.settings.page or name == _INDEX or name not in _assets():
        raise ApiError(404, f"there is nothing at {call.request.url.path:.200}")
    return _respond(call, name)


def _respond(call: Call, name: str) -> Response:
    found = _assets()[name]
    headers = {**_HEADERS, "ETag": found.etag}
    known = call.request.headers.get("if-none-match", "")
    if found.etag in (each.strip().removeprefix("W/") for each in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)


@cache
def _assets() -> dict[str, _Asset]:
    """By name. Nothing else in the file system can be asked for."""
    found = {}
    for path in sorted(_FOLDER.iterdir()):
        content = path.read_bytes()
        etag = f'"{sha256(content).hexdigest()[:32]}"'
        found[path.name] = _Asset(content, _TYPES[path.suffix], etag)
    return found

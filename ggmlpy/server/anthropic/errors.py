"""Errors in the form of Anthropic's API.

    {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "…"},
        "request_id": "…",
    }

Source: docs.anthropic.com/en/api/errors.
"""

from __future__ import annotations

from typing import Any

from ggmlpy.server.errors import ApiError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def as_anthropic(error: ApiError, id: str) -> dict[str, Any]:
    """The object of the error of a request with this id."""
    kind = _TYPES.get(error.status)
    if kind is None:
        kind = "invalid_request_error" if error.status < 500 else "api_error"
    return {
        "type": "error",
        "error": {"type": kind, "message": error.message},
        "request_id": id,
    }

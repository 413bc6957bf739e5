"""Errors as HTTP responses: OpenAI's error object, with the status that fits.

    {"error": {"message": "…", "type": "invalid_request_error", "param": "top_p", "code": null}}

Sources: platform.openai.com/docs/guides/error-codes, and for /v1/messages
docs.anthropic.com/en/api/errors.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from ggmlpy import errors

INVALID = "invalid_request_error"
_TYPES = {
    400: INVALID,
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: INVALID,
    408: "timeout_error",
    413: "request_too_large",
    415: INVALID,
    429: "rate_limit_error",
    499: "client_closed_request",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
    504: "timeout_error",
}
# What a request cannot be blamed for: of these the server's log has the details.
_OF_THE_SERVER = (errors.BackendError, errors.WriteError, errors.ShapeError, errors.FileError)


class ApiError(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        return _TYPES.get(self.status, INVALID if self.status < 500 else "server_error")

    def as_dict(self) -> dict[str, Any]:
        """As OpenAI's API has it."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


def as_openai(error: ApiError, id: str) -> dict[str, Any]:
    """The object of the error of a request, whose id is in a header only."""
    return error.as_dict()


def invalid(param: str | None, message: str, code: str | None = None) -> ApiError:
    """The error of a field of the body."""
    return ApiError(400, message, param=param, code=code)


def of_error(error: BaseException, fields: Collection[str] = ()) -> ApiError:
    """An error of the engine as that of a request, whose body has these `fields`."""
    if isinstance(error, ApiError):
        return error
    text = str(error)
    if isinstance(error, RecursionError):
        return invalid(None, "the body has lists and objects in each other, too deep")
    if isinstance(error, errors.MissingPackage):
        return ApiError(501, text)
    if isinstance(error, errors.AllocationError | errors.CacheFull | MemoryError):
        return ApiError(503, f"not enough memory for this request: {text or 'none is left'}")
    if isinstance(error, errors.BadBatch):
        code = "context_length_exceeded" if "prompt is too long" in text else None
        return invalid(_first(fields, "messages", "prompt", "input"), text, code)
    if isinstance(error, errors.GrammarError):
        formats = "response_format", "json_schema", "grammar", "text", "output_config", "tools"
        return invalid(_named(text, fields) or _first(fields, *formats), text)
    if isinstance(error, errors.GgmlpyError) and not isinstance(error, _OF_THE_SERVER):
        if str(error).startswith(("the answer has ended", "the model is closed")):
            return ApiError(503, "the model was unloaded while it answered")
        return invalid(_named(text, fields), text)
    return ApiError(500, "the server could not answer: its log says why")


def _first(fields: Collection[str], *names: str) -> str | None:
    return next((name for name in names if name in fields), None)


def _named(message: str, fields: Collection[str]) -> str | None:
    """The field that a message is about: messages begin with its name, or have it soon."""
    for word in re.findall(r"\w+", message)[:8]:
        if word in fields:
            return str(word)
    return None

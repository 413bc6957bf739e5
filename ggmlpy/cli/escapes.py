"""Escapes in texts that are typed on a command line."""

from __future__ import annotations

import re

_ESCAPES = re.compile(r"(?:\\x[0-9a-fA-F]{2})+|\\.", re.DOTALL)
_CHARACTERS = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}


def unescaped(text: str) -> str:
    r"""A text in which \n, \r, \t, \', \", \\ and \xHH may stand for characters.

    \xHH is a byte of UTF-8: several in a row may be one character.
    """
    return _ESCAPES.sub(lambda found: _character(found[0]), text)


def _character(escapes: str) -> str:
    if len(escapes) > 2:
        return bytes.fromhex(escapes.replace(r"\x", "")).decode(errors="replace")
    return _CHARACTERS.get(escapes[1], escapes)

"""What the schema of a string says of its characters, as a terminal of Lark: for strings that stand
between tags or quotes of a format's own, which no grammar of JSON describes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_ANY = "(?s:.*)"
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\\\]])*\]|.", re.DOTALL)  # a character or a class
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_DATE = r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
_HOURS = r"\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S"
_DAYS = r"\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_GROUP = "[0-9a-fA-F]{1,4}"
_ATOM = r"[a-zA-Z0-9!#$%&'*+\/=?^_`{|}~-]+"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": rf"P(?:(?:{_DAYS})(?:T(?:{_HOURS}))?|T(?:{_HOURS})|\d+W)",
    "email": rf"{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})+",
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": "|".join(
        [
            f"{_GROUP}(?::{_GROUP}){{7}}",
            f"::(?:{_GROUP}(?::{_GROUP}){{0,6}})?",
            *(
                f"{_GROUP}(?::{_GROUP}){{{n - 1}}}::(?:{_GROUP}(?::{_GROUP}){{0,{6 - n}}})?"
                for n in range(1, 7)
            ),
            f"{_GROUP}(?::{_GROUP}){{6}}::",
        ]
    ),
    "uri": r"[a-zA-Z][a-zA-Z0-9+.-]*:[^\s<>\"{}|\\^`]+",
    "uuid": r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}


def terminal_of(schema: Mapping[str, Any]) -> str | None:
    """The terminal that has the strings of a schema with `pattern`, `minLength`, `maxLength` or
    `format`; None if it has none of these."""
    parts = []
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if isinstance(low, int) and (low > 0 or isinstance(high, int)):
        parts.append(f"(?s:.{{{low},{high if isinstance(high, int) else ''}}})")
    elif isinstance(high, int):
        parts.append(f"(?s:.{{0,{high}}})")
    if isinstance(schema.get("pattern"), str):
        parts += _found(schema["pattern"])
    if isinstance(schema.get("format"), str) and schema["format"] in _FORMATS:
        parts.append(_FORMATS[schema["format"]].replace(r"\d", "[0-9]"))
    return " & ".join(f"/{part}/" for part in parts) if parts else None


def _found(pattern: str) -> list[str]:
    """The expression of all texts in which one is found. None for anchors elsewhere than at the
    ends of an alternative, which lexers do not have."""
    ways, depth = [""], 0
    for part in _PART.findall(pattern):
        depth += (part == "(") - (part == ")")
        if part == "|" and not depth:
            ways.append("")
        else:
            ways[-1] += re.sub(r"\\.|/|\n", lambda found: _ESCAPED.get(found[0], found[0]), part)
    anchored = [_anchored(way) for way in ways]
    if any(part in ("^", "$") for way in anchored for part in _PART.findall(way)):
        return []
    return ["|".join(anchored)]


_ESCAPED = {"/": r"\/", "\n": r"\n"}  # what a terminal of Lark cannot have as it is


def _anchored(way: str) -> str:
    """One alternative of a pattern."""
    begin = "" if way.startswith("^") else _ANY
    is_end = re.search(r"(?<!\\)(?:\\\\)*\$\Z", way) is not None
    inner = way[1:] if not begin else way
    return f"{begin}(?:{inner[:-1] if is_end else inner}){'' if is_end else _ANY}"

"""The names of llama-cpp-python, its parameters, their order and defaults are there."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import ggmlpy.compat.llama_cpp as llama_cpp
from tests.compat.record_peer import describe

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("signatures.json").read_text())

# What is not there: this list may only become shorter.
MISSING = {
    # Templates run in a process of their own, which has these functions.
    "llama_cpp.llama_chat_format.Jinja2ChatFormatter.strftime_now",
    "llama_cpp.llama_chat_format.Jinja2ChatFormatter.tojson",
}
# Functions and structs of the C interface that the package exports.
C_INTERFACE = ("llama_", "ggml_", "gguf_", "mtmd_", "ctypes_", "load_", "suppress_", "set_verbose")


def found(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(f"ggmlpy.compat.{module}"), attribute)


def names() -> list[str]:
    return [name for name in RECORDED if name != "exported" and "value" not in RECORDED[name]]


def test_constants() -> None:
    for name, entry in RECORDED.items():
        if name != "exported" and "value" in entry:
            assert found(name) == entry["value"], name


def test_names() -> None:
    absent = set()
    for name in names():
        try:
            found(name)
        except AttributeError:
            absent.add(name)
    assert absent == {name for name in MISSING if name in RECORDED}


def test_exported_names() -> None:
    absent = [
        name
        for name in RECORDED["exported"]
        if not name.startswith(C_INTERFACE) and not hasattr(llama_cpp, name)
    ]
    assert not absent


def test_signatures() -> None:
    for name in names():
        if name in MISSING or name.startswith("llama_cpp.llama_types."):
            continue
        value = found(name)
        if name.endswith(("ChatHandler", "VisionAlpha", "_chat_handler", "_calling")):
            continue  # refused, or a handler, which is called with keywords
        check(name, RECORDED[name]["signature"], describe(value))
        for method, theirs in RECORDED[name].get("methods", {}).items():
            if f"{name}.{method}" not in MISSING:
                check(f"{name}.{method}", theirs, describe(getattr(value, method)))


def check(name: str, theirs: Any, ours: Any) -> None:
    """Their parameters are the first of ours, or ours has `**kwargs` for them."""
    if theirs is None or ours is None:
        return
    theirs = [each for each in theirs if each[0] not in ("self", "cls")]
    ours = [each for each in ours if each[0] not in ("self", "cls")]
    known = {parameter[0]: parameter for parameter in ours}
    takes_all = any(kind == "VAR_KEYWORD" for _, kind, _ in ours)
    for i, (parameter, kind, default) in enumerate(theirs):
        if kind in ("VAR_POSITIONAL", "VAR_KEYWORD") or (takes_all and parameter not in known):
            continue
        assert parameter in known, f"{name} has no parameter {parameter!r}"
        assert known[parameter][2] == default, f"{name}: default of {parameter!r}"
        if kind != "KEYWORD_ONLY":
            assert ours[i][0] == parameter, f"{name}: {parameter!r} is at another place"


def test_types_have_their_keys() -> None:
    for name in names():
        if not name.startswith("llama_cpp.llama_types."):
            continue
        signature = RECORDED[name]["signature"]
        if signature and isinstance(signature[0], str):
            assert set(signature) <= set(found(name).__annotations__), name


def test_the_c_interface_says_that_it_is_not_there() -> None:
    for name in ("llama_decode", "ggml_init"):
        try:
            getattr(llama_cpp, name)
        except AttributeError as error:
            assert "C interface" in str(error)
        else:
            raise AssertionError(name)

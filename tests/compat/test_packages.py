"""LangChain's and LlamaIndex's calls to `llama_cpp`, replayed: the results are the recorded ones.

The packages themselves are too large to be installed for tests; `record_packages.py` recorded what
they ask, and what llama-cpp-python answered.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from ggmlpy import packaged_model
from ggmlpy.compat.llama_cpp import Llama, LlamaGrammar, NoEffect
from tests.compat.compared import differences, plain

RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("packages.json").read_text(encoding="utf-8")
)


def argument(value: Any) -> Any:
    """As `record_packages.argument` wrote it."""
    if value == "the model":
        return str(packaged_model())
    if isinstance(value, dict) and value.keys() == {"bytes"}:
        return value["bytes"].encode()
    if isinstance(value, dict) and value.keys() == {"grammar"}:
        return LlamaGrammar.from_string(value["grammar"], verbose=False)
    return value


def at(value: Any, path: list[Any]) -> Any:
    """What a package reads of a result."""
    for key in path:
        value = value[key]
    return value


def replay(llm: Any, call: dict[str, Any]) -> list[str]:
    """Where the answer to a call differs from the recorded one."""
    if "attribute" in call:
        return differences(plain(attrgetter(call["name"])(llm)), call["attribute"], False)
    kwargs = {name: argument(value) for name, value in call["kwargs"].items()}
    result = getattr(llm, call["name"])(*map(argument, call["args"]), **kwargs)
    shape = "tools" in call["kwargs"]  # how many spaces a JSON text has is not the same
    if "result" in call:
        for path in call["reads"]:
            at(result, path)
        return differences(plain(result), call["result"], shape)
    assert isinstance(result, Iterator)
    chunks, expected = plain(list(result)), call["chunks"]
    for path in call["reads"]:
        assert any(readable(chunk, path) for chunk in chunks)
    if call["kwargs"].get("stop"):  # a stop string is kept back by letters here, by tokens there
        assert text_of(chunks) == text_of(expected)
        shape = True
    return differences(chunks, expected, shape) + differences(chunks[-1], expected[-1], shape)


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


def readable(chunk: Any, path: list[Any]) -> bool:
    try:
        at(chunk, path)
    except KeyError:
        return False
    return True


@pytest.mark.parametrize("package", RECORDED)
def test_calls(package: str) -> None:
    pytest.importorskip("llguidance")
    llm: Llama | None = None
    n_calls = 0
    for i, call in enumerate(RECORDED[package]["calls"]):
        if call["name"] == "Llama":
            if llm is not None:
                llm.close()
            kwargs = {name: argument(value) for name, value in call["kwargs"].items()}
            with warnings.catch_warnings():
                warnings.simplefilter("error", NoEffect)
                llm = Llama(*map(argument, call["args"]), **kwargs)
            continue
        assert replay(llm, call) == [], f"call {i} of {package}: {call['name']}"
        n_calls += 1
    assert n_calls > 10
    if llm is not None:
        llm.close()


def test_arguments_of_older_versions() -> None:
    """Without a warning where they say nothing; llama-cpp-python takes any argument in silence."""
    others: dict[str, Any] = {"n_parts": 2, "device": "cuda", "f16_kv": 3}
    for name, value in others.items():
        with pytest.warns(NoEffect, match=f"{name} is no argument"):
            Llama(str(packaged_model()), n_ctx=32, verbose=False, **{name: value}).close()

"""Records what LangChain and LlamaIndex ask of `llama_cpp`, and what they get and read of it.

    PYTHONPATH=. python tests/compat/record_packages.py ggmlpy/data/stories.gguf

in an environment with llama-cpp-python 0.3.36, langchain-community and llama-index-llms-llama-cpp.
Writes packages.json: for each package its version and its calls in order, each with the name, the
arguments, the result, and the paths of what was read of the result. A call of "Llama" makes the
model that the next ones are made to; the name of another class is that of a grammar.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.compat.compared import plain

Call = dict[str, Any]
MODEL = "the model"
PROMPT = "A girl named Sara had a loose tooth. One day,"
TWO = [PROMPT, "Tom and Lily were best friends."]

calls: list[Call] = []


# --- what is recorded ---


class Watched(dict[str, Any]):
    """A result that notes which of its values are read."""

    def __init__(self, value: dict[str, Any], reads: list[list[Any]], at: list[Any]) -> None:
        super().__init__({k: watched(each, reads, [*at, k]) for k, each in value.items()})
        self.reads, self.at = reads, at

    def note(self, key: str) -> None:
        if key in self and [*self.at, key] not in self.reads:
            self.reads.append([*self.at, key])

    def __getitem__(self, key: str) -> Any:
        self.note(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.note(key)
        return super().get(key, default)


def watched(value: Any, reads: list[list[Any]], at: list[Any]) -> Any:
    if at[-1:] == ["tool_calls"]:
        return value  # LangChain merges these, and wants dicts of the same type
    if isinstance(value, dict):
        return Watched(value, reads, at)
    if isinstance(value, list):
        return [watched(each, reads, [*at, i]) for i, each in enumerate(value)]
    return value


def argument(value: Any) -> Any:
    """As JSON has it; bytes as {"bytes": text}, a grammar as {"grammar": its text}."""
    if isinstance(value, bytes):
        return {"bytes": value.decode()}
    if type(value).__name__ == "LlamaGrammar":
        return {"grammar": value._grammar}
    return MODEL if value == sys.argv[1] else value


def note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    call: Call = {
        "name": name,
        "args": [argument(each) for each in args],
        "kwargs": {key: argument(each) for key, each in kwargs.items()},
    }
    # The packages change some of these objects later.
    calls.append(json.loads(json.dumps(call)))
    return calls[-1]


def recorded(call: Call, result: Any) -> Any:
    call["reads"] = []
    if isinstance(result, Iterator):
        call["chunks"] = []
        return streamed(call, result)
    call["result"] = plain(result)
    return watched(result, call["reads"], [])


def streamed(call: Call, chunks: Iterator[Any]) -> Iterator[Any]:
    for chunk in chunks:
        call["chunks"].append(plain(chunk))
        yield watched(chunk, call["reads"], [])


class RecordedLlama:
    """llama-cpp-python's `Llama` that notes its calls."""

    make: Callable[..., Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        note("Llama", args, kwargs)
        self._llm = type(self).make(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return recorded(note("__call__", args, kwargs), self._llm(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._llm, name)
        if not callable(value):
            return RecordedValue(value, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            return recorded(note(name, args, kwargs), value(*args, **kwargs))

        return method


class RecordedValue:
    """An object in an attribute of the model: notes which of its own attributes are read."""

    def __init__(self, value: Any, name: str) -> None:
        self._value, self._name = value, name

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._value, name)
        calls.append({"name": f"{self._name}.{name}", "attribute": plain(value)})
        return value


# --- what the packages are asked ---


def langchain(model: str, folder: Path) -> None:
    from langchain_community.chat_models import ChatLlamaCpp
    from langchain_community.embeddings import LlamaCppEmbeddings
    from langchain_community.llms import LlamaCpp
    from pydantic import create_model

    options: dict[str, Any] = {
        "model_path": model,
        "n_ctx": 512,
        "temperature": 0,
        "max_tokens": 8,
        "verbose": False,
    }
    llm = LlamaCpp(**options)
    llm.invoke(PROMPT)
    llm.invoke(PROMPT, stop=["stairs"])
    list(llm.stream(PROMPT))
    llm.generate(TWO)
    llm.get_num_tokens("The dog ran home.")
    grammar = folder / "animals.gbnf"
    grammar.write_text('root ::= " a " ("cat" | "dog") "."')
    LlamaCpp(**options, grammar_path=str(grammar)).invoke("Once there was")
    LlamaCpp(**{**options, "n_batch": 64, "seed": 7, "top_k": 1, "lora_path": None}).invoke(PROMPT)

    chat = ChatLlamaCpp(**{**options, "max_tokens": 4})
    chat.invoke([("system", "You are kind."), ("human", TWO[1])])
    list(chat.stream([("system", "You are kind."), ("human", TWO[1])]))
    weather = create_model("Weather", __doc__="The weather to come.", city=(str, ...))
    chosen = {"type": "function", "function": {"name": "Weather"}}
    options["max_tokens"] = 64
    bound = ChatLlamaCpp(**options).bind_tools([weather], tool_choice=chosen)
    bound.invoke("How is it in Rome?")
    list(bound.stream("How is it in Rome?"))

    embeddings = LlamaCppEmbeddings(model_path=model, n_ctx=512, verbose=False)
    embeddings.embed_documents(TWO[:1])
    embeddings.embed_query(TWO[0])


def llama_index(model: str, folder: Path) -> None:
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.llama_cpp import LlamaCPP

    llm = LlamaCPP(
        model_path=model,
        temperature=0.0,
        max_new_tokens=8,
        context_window=512,
        generate_kwargs={},
        model_kwargs={"n_gpu_layers": 0},
        verbose=False,
        messages_to_prompt=lambda messages: "\n".join(each.content for each in messages),
        completion_to_prompt=lambda text: text,
    )
    llm.complete(PROMPT)
    list(llm.stream_complete(PROMPT))
    llm.chat([ChatMessage(role="user", content=TWO[1])])
    list(llm.stream_chat([ChatMessage(role="user", content=TWO[1])]))
    assert llm.metadata.context_window == 512


def record(model: str) -> dict[str, Any]:
    library = import_module("llama_cpp")
    RecordedLlama.make = library.Llama
    library.Llama = RecordedLlama  # type: ignore[attr-defined]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for package, run in (
            ("langchain-community", langchain),
            ("llama-index-llms-llama-cpp", llama_index),
        ):
            calls.clear()
            run(model, Path(folder))
            found[package] = {"version": version(package), "calls": list(calls)}
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    text = json.dumps(record(sys.argv[1]), separators=(",", ":"))
    Path(__file__).with_name("packages.json").write_text(text + "\n")

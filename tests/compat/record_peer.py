"""Records what llama-cpp-python has, for tests that run without it.

    python tests/compat/record_peer.py      # in an environment with llama-cpp-python 0.3.36

Writes signatures.json, the public names of its modules with the signatures of functions, classes
and methods, prompts.json, the prompts that its chat formats make of some conversations, and
templates.json, those of its templates.
"""

from __future__ import annotations

import inspect
import json
from importlib import import_module
from pathlib import Path
from typing import Any

MODULES = (
    "llama_cpp",
    "llama_cpp.llama",
    "llama_cpp.llama_cache",
    "llama_cpp.llama_chat_format",
    "llama_cpp.llama_grammar",
    "llama_cpp.llama_speculative",
    "llama_cpp.llama_tokenizer",
    "llama_cpp.llama_types",
)
HERE = Path(__file__).parent

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello."}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    [
        {"role": "system", "content": "You know cats."},
        {"role": "user", "content": "Do they swim?"},
        {"role": "assistant", "content": "Some do."},
        {"role": "user", "content": "Which?\nName one."},
    ],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
    ],
]


def describe(value: Any) -> Any:
    """A signature as [name, kind, default] of each parameter; None for what has none."""
    if inspect.isclass(value) and issubclass(value, dict):  # a TypedDict
        return sorted(value.__annotations__)
    if not callable(value):
        return None
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return None
    return [[p.name, p.kind.name, default_of(p)] for p in parameters]


def default_of(parameter: inspect.Parameter) -> str | None:
    """The text of a default, None if there is none."""
    return None if parameter.default is parameter.empty else repr(parameter.default)


def public_names(module: Any) -> list[str]:
    """What a module defines, and the constants of llama.cpp's headers."""
    names = []
    for name, value in vars(module).items():
        is_constant = isinstance(value, int) and name.isupper() and name != "TYPE_CHECKING"
        is_own = getattr(value, "__module__", None) == module.__name__
        if not name.startswith("_") and (is_own or is_constant):
            names.append(name)
    return names


def signatures() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in MODULES:
        module = import_module(name)
        for each in public_names(module):
            value = getattr(module, each)
            if isinstance(value, int):
                found.setdefault(f"llama_cpp.{each}", {"value": value})
                continue
            entry: dict[str, Any] = {"signature": describe(value)}
            if inspect.isclass(value):
                entry["methods"] = methods_of(value)
            found[f"{name}.{each}"] = entry
    top = import_module("llama_cpp")
    found["exported"] = sorted(
        name
        for name, value in vars(top).items()
        if not name.startswith("_") and (getattr(value, "__module__", "") or "").startswith("llama")
    )
    return found


def methods_of(value: type) -> dict[str, Any]:
    """The public methods of a class, and those of `__init__` and `__call__`."""
    found = {}
    for name, method in vars(value).items():
        if (name.startswith("_") and name != "__call__") or inspect.isclass(method):
            continue
        found[name] = describe(getattr(method, "__func__", method))
    return found


def prompts() -> dict[str, Any]:
    formats = import_module("llama_cpp.llama_chat_format")
    registry = formats.LlamaChatCompletionHandlerRegistry()
    found: dict[str, Any] = {}
    for name in registry._chat_handlers:
        if name.startswith("functionary") or name == "chatml-function-calling":
            continue
        found[name] = [asked_of(registry, name, messages) for messages in CONVERSATIONS]
    return found


def asked_of(registry: Any, name: str, messages: list[dict[str, Any]]) -> Any:
    """The prompt and stop strings with which a handler calls the model, or the error."""
    model = Recorder()
    try:
        registry.get_chat_completion_handler_by_name(name)(llama=model, messages=messages)
    except Stopped:
        return [model.prompt, model.stop]
    except Exception as error:
        return type(error).__name__
    raise AssertionError(f"{name} asked the model nothing")


def templates() -> dict[str, Any]:
    """The prompts that the templates among its constants make, or "error"."""
    formats = import_module("llama_cpp.llama_chat_format")
    names = [name for name in sorted(vars(formats)) if name.endswith("_CHAT_TEMPLATE")]
    return {name: [rendered(formats, name, each) for each in CONVERSATIONS] for name in names}


def rendered(formats: Any, name: str, messages: list[dict[str, Any]]) -> str:
    formatter = formats.Jinja2ChatFormatter(getattr(formats, name), "<eos>", "<bos>")
    try:
        prompt: str = formatter(messages=messages).prompt
    except Exception:
        return "error"
    return prompt


class Stopped(Exception):
    """The model was asked."""


class Recorder:
    """A model that records the prompt of a handler."""

    verbose = False
    prompt = ""
    stop: Any = None

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        self.prompt = text.decode()
        return [1]

    def create_completion(self, **options: Any) -> Any:
        self.stop = options["stop"]
        raise Stopped


if __name__ == "__main__":
    for file, data in (
        ("signatures.json", signatures()),
        ("prompts.json", prompts()),
        ("templates.json", templates()),
    ):
        (HERE / file).write_text(
            json.dumps(data, indent=None, separators=(",", ":"), sort_keys=True) + "\n"
        )

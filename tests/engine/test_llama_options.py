"""Options of Llama's methods: what `help` shows of them, and which values are errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from ggmlpy import ArgumentError, Llama, SamplingError, Unsupported
from ggmlpy.engine.options import ChatOptions, CompletionOptions, RequestOptions
from ggmlpy.sampling import SamplingParams
from tests.models.tiny import Tiny, write_model

METHODS = (
    Llama.create_completion,
    Llama.__call__,
    Llama.request,
    Llama.generate,
    Llama.create_chat_completion,
)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)
def test_every_option_is_a_keyword_with_a_default(method: Any) -> None:
    """`help()` shows them all; none hides behind **options."""
    parameters = inspect.signature(method).parameters.values()
    options = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert not [p for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    assert all(p.annotation is not p.empty for p in options.values())
    sampling = {field.name: field.default for field in fields(SamplingParams)}
    sampling |= {"logits_processor": None}
    if method is Llama.create_chat_completion:
        sampling["temperature"] = 0.2  # llama-cpp-python's
    assert {name: options[name].default for name in sampling} == sampling
    assert inspect.getdoc(method)


def test_a_type_checker_is_told_the_options_that_the_signature_shows() -> None:
    for method, declared in (
        (Llama.create_completion, CompletionOptions),
        (Llama.request, RequestOptions),
        (Llama.generate, CompletionOptions),
        (Llama.create_chat_completion, ChatOptions),
    ):
        parameters = inspect.signature(method, eval_str=True).parameters.values()
        taken = {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY}
        taken.pop("stream", None)
        assert get_type_hints(declared) == taken


def test_unknown_options_are_an_error_of_the_method(tiny: Llama) -> None:
    for method, argument in (
        (tiny.create_completion, "ab"),
        (tiny.request, "ab"),
        (tiny.generate, ["ab"]),
        (tiny.create_chat_completion, []),
    ):
        call: Any = method
        message = f"^{call.__name__}\\(\\) got an unexpected keyword argument 'top_q'$"
        with pytest.raises(TypeError, match=message):
            call(argument, top_q=3, temperature=0)
    with pytest.raises(TypeError, match="'echo'"):
        call = tiny.request
        call("ab", echo=True)


def test_every_parameter_of_llama_is_documented() -> None:
    documented = inspect.getdoc(Llama.__init__) or ""
    for name in inspect.signature(Llama).parameters:
        assert re.search(rf"^([\w, ]+, )?{name}[ ,]", documented, re.MULTILINE), name
    documented = inspect.getdoc(Llama.create_completion) or ""
    for name in inspect.signature(Llama.create_completion).parameters:
        assert name == "self" or re.search(rf"\b{name}\b", documented), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 2.5}, r"max_tokens is 2\.5: must be an integer, or None"),
        ({"max_tokens": "8"}, "max_tokens is '8': must be an integer, or None"),
        ({"max_tokens": True}, "max_tokens is True: must be an integer, or None"),
        ({"logprobs": -1}, "logprobs is -1: must be an integer >= 0, or None"),
        ({"logprobs": 1.5}, r"logprobs is 1\.5: must be an integer >= 0, or None"),
        ({"top_k": 2.5}, r"top_k is 2\.5: must be an integer"),
    ],
)
def test_options_of_another_kind_are_refused(
    tiny: Llama, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SamplingError, match=message):
        tiny("ab", **options)
    with pytest.raises(SamplingError, match=message):
        tiny.generate(["ab"], **options)
    assert not tiny.engine.has_work


@pytest.mark.parametrize("name", ["stream", "echo", "context_shift", "model"])
@pytest.mark.parametrize("value", ["no", 1, np.array([1, 2])], ids=["text", "number", "array"])
def test_switches_and_names_of_another_kind_are_refused(
    tiny: Llama, name: str, value: object
) -> None:
    if name == "model" and isinstance(value, str):
        assert tiny("ab", max_tokens=1, model=value)["model"] == value
        return
    options: dict[str, Any] = {name: value}
    must = "a string or None" if name == "model" else "True or False"
    with pytest.raises(ArgumentError, match=f"^create_completion: {name} is .*: .* be {must}$"):
        tiny("ab", **options)


def test_numpys_switches_are_switches(tiny: Llama) -> None:
    switches: dict[str, Any] = {"echo": np.True_, "stream": np.False_}
    assert tiny("ab", max_tokens=1, **switches)["choices"][0]["text"].startswith("ab")
    messages = [{"role": "user", "content": "a"}]
    answer = tiny.create_chat_completion(messages, max_tokens=1, logprobs=None, model=None)
    assert answer["choices"][0]["logprobs"] is None


WRONG: list[Any] = [None, True, 5, 1.5, object(), np.array(3), {1: 2}, len]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: type(value).__name__)
def test_what_is_no_text_and_no_list_is_refused(tiny: Llama, wrong: Any) -> None:
    seeds: dict[str, Any] = {"seed": [wrong]}
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: tiny.tokenize(wrong), "the text is .*: it must be a string or bytes"),
        (lambda: tiny.detokenize(wrong), "tokens is .*: it must be a list of token ids"),
        (lambda: tiny.logits(wrong), "tokens is .*: it must be a list of token ids"),
        (lambda: tiny(wrong), "prompt is .*: it must be a string or token ids"),
        (lambda: tiny.create_chat_completion(wrong), "messages is .*: it must be a list"),
        (lambda: tiny.rank("a", wrong), "documents is .*: it must be a list of texts"),
        (lambda: tiny.pieces("ab", wrong), "sampling is .*: it must be SamplingParams"),
        (lambda: tiny.score_tokens(wrong), "score_tokens: texts must be a list of pairs"),
        (lambda: tiny("ab", **seeds), "seed is .*: must be an integer"),
    ]
    for call, message in calls:
        with pytest.raises((ArgumentError, SamplingError), match=message):
            call()
    if not isinstance(wrong, dict | np.ndarray):
        with pytest.raises(ArgumentError, match=r"prompts is .*: it must be a list of texts"):
            tiny.generate(wrong)
    with pytest.raises(ArgumentError, match=r"token id .*: it must be an integer"):
        tiny.detokenize([1.5])  # type: ignore[list-item]
    assert not tiny.engine.has_work


def test_callbacks_are_one_for_each_text(tiny: Llama) -> None:
    for callbacks in ([], [print, print], print):
        wrong: Any = callbacks
        with pytest.raises(ArgumentError, match="callbacks must be a list of 1, one for each"):
            tiny.score_tokens([([1, 2], 1)], callbacks=wrong)


@pytest.mark.parametrize("wrong", [{"blk": 1}, {1: "cpu"}, {None: None}])
def test_overridden_tensors_are_named_by_texts(tmp_path: Path, wrong: Any) -> None:
    path = write_model(tmp_path / "m.gguf", Tiny())
    with pytest.raises(ArgumentError, match=r"override_tensors: the .* it must be a string"):
        Llama(path, backend="null", override_tensors=wrong)


def test_numpys_integers_are_integers(tiny: Llama) -> None:
    three: Any = np.int64(3)
    made = tiny("ab", max_tokens=three, temperature=0)
    assert made["usage"]["completion_tokens"] == 3


def test_kv_types_by_ggmls_numbers(tmp_path: Path) -> None:
    path = write_model(tmp_path / "wide.gguf", Tiny(n_head=2, n_head_kv=1, n_rot=32))
    with Llama(path, backend="null", type_k=8, type_v=0) as llm:
        (cache,) = llm.engine.context.memory.caches
        assert (cache.store.type_k.name, cache.store.type_v.name) == ("q8_0", "f32")
    for number in (99, -1):
        with pytest.raises(Unsupported, match=f"type_k is {number}: must be one of f32, f16"):
            Llama(path, backend="null", type_k=number)
    wrong: list[Any] = [True, None, 1.5]
    for bad in wrong:
        with pytest.raises(ArgumentError, match=r"^Llama: type_k is .*: it must be a string, a "):
            Llama(path, backend="null", type_k=bad)

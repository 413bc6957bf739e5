"""Options of completions: declared once, for type checkers, signatures and defaults.

`keywords` gives them to a method, as keywords of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from typing import Any, TypedDict, TypeVar, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.arguments import parsed, parser_of
from ggmlpy.grammar import Grammar
from ggmlpy.models.lora import LoraAdapter
from ggmlpy.sampling import SamplingParams
from ggmlpy.sampling.steps import Step

LogitsCallback = Callable[[Sequence[int], NDArray[np.float32]], NDArray[np.float32]]
StoppingCallback = Callable[[Sequence[int], NDArray[np.float32]], bool]
# Adapters, or their numbers, with the scale of each; or as llama-server has it, a list of
# {"id": …, "scale": …}.
LoraScales = Mapping[LoraAdapter, float] | Mapping[int, float] | Sequence[Mapping[str, Any]]
Method = TypeVar("Method", bound=Callable[..., Any])


class SamplingOptions(TypedDict, total=False):
    """How tokens are sampled; `SamplingParams` describes each."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    min_keep: int
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    penalty_last_n: int
    logit_bias: Mapping[int, float] | None
    logits_processor: LogitsCallback | None
    seed: int | None
    samplers: Sequence[str | Step]
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    mirostat_mode: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float
    adaptive_decay: float


class AnswerOptions(SamplingOptions, total=False):
    """What a completion and a chat have in common."""

    max_tokens: int | None
    stop: str | Sequence[str] | None
    stopping_criteria: StoppingCallback | None
    grammar: Grammar | str | None
    response_format: Mapping[str, Any] | None
    priority: int
    context_shift: bool
    n_keep: int
    lora: LoraScales | None


class RequestOptions(AnswerOptions, total=False):
    """Options of `Llama.request`."""

    logprobs: int | None


class CompletionOptions(RequestOptions, total=False):
    """Options of `Llama.create_completion` and `Llama.generate`."""

    echo: bool
    model: str | None


class ChatOptions(AnswerOptions, total=False):
    """Options of `Llama.create_chat_completion`."""

    logprobs: bool | None
    top_logprobs: int | None
    model: str | None
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    chat_template_kwargs: Mapping[str, Any] | None
    reasoning_format: str
    reasoning_budget: int
    continue_final_message: bool


_DEFAULTS: dict[str, Any] = {
    **{field.name: field.default for field in fields(SamplingParams)},
    "logits_processor": None,
    "max_tokens": 16,
    "stop": None,
    "stopping_criteria": None,
    "logprobs": None,
    "grammar": None,
    "response_format": None,
    "priority": 0,
    "context_shift": False,
    "n_keep": 0,
    "lora": None,
    "echo": False,
    "model": None,
    "top_logprobs": None,
    "tools": None,
    "tool_choice": None,
    "parallel_tool_calls": None,
    "chat_template_kwargs": None,
    "reasoning_format": "auto",
    "reasoning_budget": -1,
    "continue_final_message": False,
}


# Options of these kinds are checked here: no other code would notice a wrong value.
_CHECKED = {kind: parser_of(kind) for kind in (bool, bool | None, str, str | None)}


def keywords(declared: type, **defaults: Any) -> Callable[[Method], Method]:
    """Decorator: replace `**options` of a method by the keywords of a TypedDict, with defaults.

    `defaults` are those that differ from a completion's. `help()` and editors show every option,
    and the method gets all of them. Switches and names of a wrong type raise ArgumentError.
    """

    def decorate(method: Method) -> Method:
        hints = get_type_hints(declared)
        values = {name: defaults.get(name, _DEFAULTS[name]) for name in hints}
        signature = inspect.signature(method)
        *own, rest = signature.parameters.values()
        assert rest.kind is rest.VAR_KEYWORD, f"{method.__name__} takes no **options"
        known = values.keys() | {parameter.name for parameter in own}
        parses = {name: _CHECKED[hint] for name, hint in hints.items() if hint in _CHECKED}
        if "stream" in known:
            parses["stream"] = _CHECKED[bool]

        @wraps(method)
        def call(*args: Any, **given: Any) -> Any:
            unknown = given.keys() - known
            if unknown:
                raise TypeError(
                    f"{method.__name__}() got an unexpected keyword argument {min(unknown)!r}"
                )
            for name in given.keys() & parses.keys():
                given[name] = parsed(parses[name], method.__name__, name, given[name])
            return method(*args, **{**values, **given})

        options = (
            inspect.Parameter(name, rest.KEYWORD_ONLY, default=values[name], annotation=hint)
            for name, hint in hints.items()
        )
        vars(call)["__signature__"] = signature.replace(parameters=[*own, *options])
        return cast(Method, call)

    return decorate

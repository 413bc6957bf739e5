"""From the arguments of `Llama`'s methods to requests."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from numbers import Integral
from typing import Any

from ggmlpy.common.arguments import is_list, kind_of
from ggmlpy.engine.generation import Prompt, Request
from ggmlpy.errors import ArgumentError, BadBatch, SamplingError
from ggmlpy.sampling import SamplingParams
from ggmlpy.text.tokenizer import Tokenizer

Stop = str | Sequence[str] | None
_NO_LIMIT = 2**62  # tokens of an answer
# Options that are fields of a request as they are.
_FIELDS = ("logits_processor", "priority", "stopping_criteria", "context_shift", "n_keep", "lora")


def new_request(
    prompt: Sequence[int],
    sampling: SamplingParams,
    max_tokens: int | None,
    n_ctx_seq: int,
    **others: Any,
) -> Request:
    """A request with other fields of `Request`. `max_tokens` None or below 1: until the context is
    full, or with a context shift without a limit.

    Raises SamplingError for a field that is not of its kind, or out of its range.
    """
    request = Request(prompt, n_ctx_seq, sampling, **others)
    _check_count("max_tokens", max_tokens)
    _check_function("logits_processor", request.logits_processor)
    _check_function("stopping_criteria", request.stopping_criteria)
    _check_count("logprobs", request.n_top_logprobs, least=0)
    _check_count("n_keep", request.n_keep, least=-1)
    if max_tokens is None or max_tokens < 1:  # the engine stops at the end of the context
        max_tokens = _NO_LIMIT if request.context_shift else n_ctx_seq
    return replace(request, max_tokens=max_tokens)


def request_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a completion and a chat have in common, as arguments of `new_request`."""
    return {name: options[name] for name in ("max_tokens", *_FIELDS)}


def sampling_params(options: Mapping[str, Any], seed: int | None) -> SamplingParams:
    """The options that are sampling parameters; `seed` is that of a call without one."""
    params = {field.name: options[field.name] for field in fields(SamplingParams)}
    seed = seed if params["seed"] is None else params["seed"]
    is_random = isinstance(seed, Integral) and seed == -1  # as in llama.cpp
    return SamplingParams(**params | {"seed": None if is_random else seed})


def prompt_tokens(prompt: Prompt, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a prompt. Raises ArgumentError, BadBatch for one without any."""
    if isinstance(prompt, str):
        tokens = tokenizer.encode(prompt, add_bos=True, special=True)
    elif is_list(prompt):
        tokens = [_token(token) for token in prompt]
    else:
        raise ArgumentError(f"prompt is {kind_of(prompt)}: it must be a string or token ids")
    if not tokens:
        why = ", and the vocabulary has no BOS token" if isinstance(prompt, str) else ""
        raise BadBatch(f"the prompt is empty{why}: it must have at least one token")
    return tokens


def stop_list(stop: Stop) -> list[str]:
    """The stop strings of an option. Raises SamplingError for what is none."""
    if stop is None:
        return []
    if not isinstance(stop, str | Sequence):
        raise SamplingError(f"stop is {stop!r}: must be a string, or a list of strings")
    return [stop] if isinstance(stop, str) else list(stop)


def _token(token: Any) -> int:
    if isinstance(token, str):
        raise ArgumentError(
            "prompt is a list of texts: it must be one text or token ids; see generate()"
        )
    try:
        return operator.index(token)
    except TypeError:
        raise ArgumentError(f"prompt has the token id {token!r}: it must be an integer") from None


def _check_function(name: str, value: Any) -> None:
    """Raise SamplingError unless `value` is None or a function."""
    if value is not None and not callable(value):
        raise SamplingError(f"{name} is {value!r}: must be a function")


def _check_count(name: str, value: Any, least: int | None = None) -> None:
    """Raise SamplingError unless `value` is None or an integer, of at least `least`."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if value is None or (whole and (least is None or operator.index(value) >= least)):
        return
    must = "an integer" if least is None else f"an integer >= {least}"
    raise SamplingError(f"{name} is {value!r}: must be {must}, or None")

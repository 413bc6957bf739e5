"""Fields of a body that become options of `Llama.create_completion`, whatever the API.

Names are OpenAI's and llama-server's; where those of `Llama` differ, `_RENAMED` has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmlpy.sampling.names import samplers_by_letters
from ggmlpy.server.errors import invalid
from ggmlpy.server.fields import (
    Kind,
    anything,
    either,
    flag,
    integer,
    listed,
    mapping,
    number,
    read,
    text,
    wrong,
)
from ggmlpy.text.tokenizer import Tokenizer

_MOST_STOPS = 64
_MOST_BIASED = 256  # characters of a text in logit_bias, which is tokenized in the event loop
stops = either(text, listed(text, most=_MOST_STOPS), must="a string, or a list of strings")
_LAST_N = integer(-1)


def samplers(name: str, value: Any) -> list[str]:
    """Names of steps, or llama.cpp's letters for them. Raises ApiError, SamplingError."""
    if isinstance(value, str):
        return list(samplers_by_letters(value))
    found: list[str] = listed(text)(name, value)
    return found


# How tokens are sampled.
SAMPLING: dict[str, Kind] = {
    "temperature": number(0),
    "top_p": number(0, 1),
    "top_k": integer(-1),  # vLLM's number for all tokens, of which ours is 0
    "min_p": number(0, 1),
    "typical_p": number(0),
    "typ_p": number(0),
    "min_keep": integer(0),
    "top_n_sigma": number(),
    "xtc_probability": number(0, 1),
    "xtc_threshold": number(0),
    "dynatemp_range": number(0),
    "dynatemp_exponent": number(),
    "repeat_penalty": number(),
    "repetition_penalty": number(),  # vLLM's name
    "repeat_last_n": _LAST_N,
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "dry_multiplier": number(0),
    "dry_base": number(),
    "dry_allowed_length": integer(0),
    "dry_penalty_last_n": _LAST_N,
    "dry_sequence_breakers": listed(text),
    "mirostat": integer(0, 2),
    "mirostat_tau": number(0),
    "mirostat_eta": number(0),
    "adaptive_target": number(),
    "adaptive_decay": number(0, 1),
    "samplers": samplers,
}
# How many tokens an answer has at most: 0: none, -1: no limit. The last one that is given counts.
_LIMITS: dict[str, Kind] = {
    "max_tokens": integer(-1),
    "max_completion_tokens": integer(-1),
    "n_predict": integer(-1),
}
# What an answer is, and when it ends.
ANSWER: dict[str, Kind] = {
    **_LIMITS,
    "stop": stops,
    "grammar": text,
    "json_schema": mapping,
    "response_format": mapping,
    "n_keep": integer(-1),
    "context_shift": flag,
    "priority": integer(),
    "lora": listed(mapping),
    "ignore_eos": flag,
    "logit_bias": anything,
    "seed": integer(),  # -1: another one each time
}
_RENAMED = {
    "typ_p": "typical_p",
    "repetition_penalty": "repeat_penalty",
    "repeat_last_n": "penalty_last_n",
    "mirostat": "mirostat_mode",
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
}
_NOT_SAMPLED = ("ignore_eos", "json_schema")
# llama-server's options of how a request is run, which are fields of `Request`.
_RUN = {
    "id_slot": integer(-1),
    "cache_prompt": flag,
    "n_discard": integer(0),
    "n_indent": integer(0),
    "return_progress": flag,
    "timings_per_token": flag,
    "n_cache_reuse": integer(0),  # without an effect: only prefixes are reused
}


def read_options(
    body: Mapping[str, Any], defaults: Mapping[str, Any], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Options of `Llama.create_completion` that a body has, over `defaults`. Raises ApiError."""
    found = read(body, SAMPLING | ANSWER)
    options = dict(defaults)
    options |= {_RENAMED.get(k, k): v for k, v in found.items() if k not in _NOT_SAMPLED}
    if found.get("top_k") == -1:
        options["top_k"] = 0
    if "seed" in found:
        options["seed"] = None if found["seed"] == -1 else found["seed"] % 2**32
    if "logit_bias" in found:
        options["logit_bias"] = _biases(found["logit_bias"], tokenizer)
    if found.get("ignore_eos"):
        biases = options.get("logit_bias") or {}
        options["logit_bias"] = {**biases, **dict.fromkeys(tokenizer.eog_ids, float("-inf"))}
    if "json_schema" in found:
        if "grammar" in found or "response_format" in found:
            raise invalid("json_schema", "json_schema is given beside another grammar")
        options["response_format"] = {"type": "json_object", "schema": found["json_schema"]}
    return options


def read_run(
    body: Mapping[str, Any], defaults: Mapping[str, Any], n_seq_max: int
) -> dict[str, Any]:
    """Fields of `Request` that a body has, over `defaults`, where a context has `n_seq_max`
    sequences. Raises ApiError."""
    asked = read(body, _RUN)
    limits = [defaults.get("max_tokens"), *read(body, _LIMITS).values()]
    is_stream = body.get("stream") is True
    made: dict[str, Any] = {
        "reuses": asked.get("cache_prompt", True),
        "n_discard": asked.get("n_discard", 0),
        "n_indent": asked.get("n_indent", 0),
        "reports_progress": is_stream and asked.get("return_progress", False),
        "reports_timings": is_stream and asked.get("timings_per_token", False),
    }
    if limits[-1] == 0:  # for `Llama` that is no limit
        made["max_tokens"] = 0
    if asked.get("id_slot", -1) >= 0:
        made["slot"] = asked["id_slot"] % n_seq_max  # as in llama-server
    return made


def _biases(value: Any, tokenizer: Tokenizer) -> dict[int, float]:
    """{"15043": -1.0}, or llama-server's [[15043, -1.0], [15044, false]]. Of a text all tokens have
    the bias."""
    pairs = list(value.items()) if isinstance(value, dict) else value
    must = 'an object {"token id": bias}, or a list of [token id or text, bias]'
    if not isinstance(pairs, list):
        raise wrong("logit_bias", value, must)
    found: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise wrong("logit_bias", value, must)
        token, bias = pair
        value = float("-inf") if bias is False else number()("logit_bias", bias)
        found |= dict.fromkeys(_ids(token, tokenizer), value)
    return found


def _ids(token: Any, tokenizer: Tokenizer) -> list[int]:
    """The tokens that an id, or a text, is."""
    if not isinstance(token, str):
        return [integer(0)("logit_bias", token)]
    try:
        return [int(token)]
    except ValueError:
        if len(token) > _MOST_BIASED:
            raise invalid(
                "logit_bias",
                f"logit_bias has a text of {len(token)} characters: there may be {_MOST_BIASED}",
            ) from None
        tokens = tokenizer.encode(token)
    if not tokens:
        raise invalid("logit_bias", "logit_bias has an empty text: it must be an id, or a text")
    return tokens

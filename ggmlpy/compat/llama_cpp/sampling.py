"""llama-cpp-python's sampling arguments as those of ggmlpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmlpy.common.arguments import as_float, kind_of, parsed
from ggmlpy.errors import ArgumentError
from ggmlpy.sampling import SamplingParams

Mirostat = tuple[int, float, float]  # mode, tau, eta


def sampling_params(
    *,
    temperature: float,
    mirostat: Mirostat,
    logit_bias: Mapping[Any, Any] | None = None,
    **params: Any,
) -> SamplingParams:
    """The parameters, with mirostat in place of the filters if its mode is 1 or 2. A temperature
    below 0 means no filters and the model's own probabilities.

    Raises SamplingError (a ValueError) for a value out of its range, ArgumentError (a TypeError
    too) for one of another kind.
    """
    mode, tau, eta = mirostat
    temperature = parsed(as_float, "Llama", "temperature", temperature)
    if temperature < 0:  # all tokens, by their probabilities
        params |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
        temperature, mode = 1.0, 0
    elif mode and temperature > 0:
        temperature = 1.0  # it sets the spread itself
    return SamplingParams(
        temperature=temperature,
        logit_bias=None if logit_bias is None else _bias(logit_bias),
        mirostat_mode=mode,
        mirostat_tau=tau,
        mirostat_eta=eta,
        **params,
    )


def _bias(given: Mapping[Any, Any]) -> dict[int, float]:
    """A bias whose token ids and values may be texts, as in OpenAI's API. Raises ArgumentError."""
    if not isinstance(given, Mapping):
        raise ArgumentError(f"logit_bias is {kind_of(given)}: it must be a dict of token ids")
    try:
        return {int(token): float(value) for token, value in given.items()}
    except (TypeError, ValueError):
        raise ArgumentError(
            f"logit_bias is {given!r:.80}: it must be a dict of token ids and numbers"
        ) from None

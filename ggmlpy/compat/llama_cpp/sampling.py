"""llama-cpp-python's sampling arguments as those of ggmlpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

    Raises SamplingError (a ValueError) for a value out of its range.
    """
    mode, tau, eta = mirostat
    if temperature < 0:  # all tokens, by their probabilities
        params |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
        temperature, mode = 1.0, 0
    elif mode and temperature > 0:
        temperature = 1.0  # it sets the spread itself
    bias = None
    if logit_bias is not None:
        bias = {int(token): float(value) for token, value in logit_bias.items()}
    return SamplingParams(
        temperature=temperature,
        logit_bias=bias,
        mirostat_mode=mode,
        mirostat_tau=tau,
        mirostat_eta=eta,
        **params,
    )

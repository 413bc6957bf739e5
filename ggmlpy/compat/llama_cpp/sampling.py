"""llama-cpp-python's sampling arguments as those of ggmlpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggmlpy.errors import Unsupported
from ggmlpy.sampling import SamplingParams

Mirostat = tuple[int, float, float]  # mode, tau, eta


def sampling_params(
    *,
    temperature: float,
    mirostat: Mirostat,
    logit_bias: Mapping[Any, Any] | None = None,
    **params: Any,
) -> SamplingParams:
    """The parameters, with Mirostat in place of the filters if its mode is 1 or 2.

    Raises SamplingError (a ValueError) for a value out of its range.
    """
    mode = mirostat[0]
    if mode not in (0, 1, 2):
        raise Unsupported(f"mirostat_mode is {mode!r}: it must be 0, 1 or 2")
    if mode != 0:
        raise Unsupported(f"mirostat_mode is {mode!r}: Mirostat is not available, it must be 0")
    bias = None
    if logit_bias is not None:
        bias = {int(token): float(value) for token, value in logit_bias.items()}
    return SamplingParams(temperature=temperature, logit_bias=bias, **params)

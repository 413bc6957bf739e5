"""Sampling parameters, with llama-cpp-python's names and defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from ggmlpy.common.arguments import Parse, WrongKind, as_float, as_whole
from ggmlpy.errors import SamplingError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is sampled. Raises SamplingError for a value out of its range.

    temperature        divides the logits; 0 or less is greedy: the largest logit after penalties
    top_k              keep the k most probable tokens; 0 or less keeps all
    top_p              keep the most probable tokens until their probabilities reach p; 1 keeps all
    min_p              drop tokens less probable than p times the most probable; 0 keeps all
    typical_p          keep the tokens whose surprise is nearest to the entropy, until their
                       probabilities exceed p; 1 keeps all
    repeat_penalty     divides the logits of the last tokens if positive, multiplies them otherwise
    frequency_penalty  subtracted from a logit once for each occurrence among the last tokens
    presence_penalty   subtracted from a logit if the token is among the last tokens
    penalty_last_n     how many of the last tokens the penalties consider; 0: none, -1: all
    seed               of the draws; None takes a random one, see `Sampler.seed`
    logit_bias         {token id: value added to its logit}; -inf bans the token
    min_keep           typical_p, top_p and min_p leave at least this many tokens
    """

    temperature: float = 0.8
    top_p: float = 0.95
    top_k: int = 40
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    seed: int | None = None
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    min_keep: int = 1

    def __post_init__(self) -> None:
        _check_real("temperature", self.temperature, note="; 0 or less is greedy")
        _check_integer("top_k", self.top_k, note="; 0 or less keeps all")
        for name in ("top_p", "min_p", "typical_p"):
            _check_real(name, getattr(self, name), low=0.0, high=1.0)
        _check_real("repeat_penalty", self.repeat_penalty)
        if self.repeat_penalty <= 0:
            raise _error("repeat_penalty", self.repeat_penalty, "a number greater than 0")
        _check_real("frequency_penalty", self.frequency_penalty)
        _check_real("presence_penalty", self.presence_penalty)
        _check_integer("penalty_last_n", self.penalty_last_n, low=-1, note="; -1: all, 0: none")
        if self.seed is not None:
            _check_integer(
                "seed",
                self.seed,
                low=0,
                high=2**64 - 1,
                note=", or None (in Llama also -1) for a random one",
            )
        _check_integer("min_keep", self.min_keep, low=0)
        if self.logit_bias is not None:
            _check_bias(self.logit_bias)

    @property
    def is_greedy(self) -> bool:
        """Whether the largest logit is taken, without a draw."""
        return self.temperature <= 0


def _check_bias(logit_bias: object) -> None:
    if not isinstance(logit_bias, Mapping):
        raise _error("logit_bias", logit_bias, "a mapping of token id to number")
    for token, bias in logit_bias.items():
        _check_integer("a token id of logit_bias", token, low=0)
        name = f"logit_bias[{token}]"
        # +inf would rule out every other token, and two of them would leave the draw undefined.
        if not _is_real(bias) or math.isnan(bias) or bias == math.inf:
            raise _error(name, bias, "a number, or -inf")


def _check_real(
    name: str, value: object, low: float = -math.inf, high: float = math.inf, note: str = ""
) -> None:
    if not _is_real(value) or not math.isfinite(value) or not low <= value <= high:
        must_be = "a finite number" if low == -math.inf else f"a number in {low:g} .. {high:g}"
        raise _error(name, value, must_be + note)


def _check_integer(
    name: str, value: object, low: int | None = None, high: int | None = None, note: str = ""
) -> None:
    fits = _is_integer(value) and (low is None or value >= low) and (high is None or value <= high)
    if not fits:
        must_be = "an integer"
        if low is not None:
            must_be += f" >= {low}" if high is None else f" in {low} .. {high}"
        raise _error(name, value, must_be + note)


def _is_real(value: object) -> TypeGuard[float]:
    return _is_kind(as_float, value)


def _is_integer(value: object) -> TypeGuard[int]:
    return _is_kind(as_whole, value)


def _is_kind(parse: Parse, value: object) -> bool:
    try:
        parse(value)
    except WrongKind:
        return False
    return True


def _error(name: str, value: object, must_be: str) -> SamplingError:
    return SamplingError(f"{name} is {value!r}: must be {must_be}")

"""Sampling parameters, with llama-cpp-python's names and defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from ggmlpy.common.arguments import Parse, WrongKind, as_float, as_whole
from ggmlpy.errors import SamplingError
from ggmlpy.sampling.names import DEFAULT_SAMPLERS, LETTERS, sampler_name
from ggmlpy.sampling.steps import Filter, LogitsProcessor, Step


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
    min_keep           typical_p, top_p, min_p and xtc leave at least this many tokens
    samplers           the steps in their order: names (see below), and own steps, instances of
                       `Filter` and `LogitsProcessor`; what is not named does not run
    top_n_sigma        keep logits within n standard deviations of the largest; 0 or less keeps all
    xtc_probability    how often XTC drops all but the least probable of the tokens that have at
                       least xtc_threshold; 0: never
    xtc_threshold      above 0.5: never
    dynatemp_range     the temperature is temperature - range .. temperature + range, by the entropy
    dynatemp_exponent  of the entropy's share of its maximum
    dry_multiplier     DRY subtracts multiplier * base^(n - allowed_length) from the logit of a
                       token that would extend a repetition of n tokens; 0: no penalty
    dry_base           at least 1
    dry_allowed_length shorter repetitions have no penalty
    dry_penalty_last_n how many of the last tokens DRY considers; 0: none, -1: all
    dry_sequence_breakers
                       texts beyond which a repetition is not followed
    mirostat_mode      1 or 2: mirostat of that version in place of the filters; 0: none
    mirostat_tau       the surprise that mirostat aims at, in bits
    mirostat_eta       how fast it learns
    adaptive_target    the probability near which adaptive_p prefers tokens; below 0: off
    adaptive_decay     of its mean of past probabilities, 0 .. 0.99

    Names of samplers: penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature,
    which is the default order, and infill and adaptive_p, which is always the last. The bias comes
    first. At temperature 0, typ_p, xtc, mirostat and adaptive_p have no effect. With mirostat,
    penalties, dry, temperature and own steps run before it, in their order, and no others.
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
    samplers: Sequence[str | Step] = DEFAULT_SAMPLERS
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    mirostat_mode: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9

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
        self._check_later_steps()
        object.__setattr__(self, "samplers", _samplers(self.samplers))
        breakers = _breakers(self.dry_sequence_breakers)
        object.__setattr__(self, "dry_sequence_breakers", breakers)
        if self.adaptive_target >= 0 and "adaptive_p" not in self.samplers:
            raise SamplingError(
                f"adaptive_target is {self.adaptive_target!r}: samplers must name adaptive_p then"
            )

    def _check_later_steps(self) -> None:
        for name in ("top_n_sigma", "dry_multiplier", "mirostat_eta"):
            _check_real(name, getattr(self, name))
        for name in ("xtc_probability", "xtc_threshold"):
            _check_real(name, getattr(self, name), low=0.0, high=1.0)
        for name in ("dynatemp_range", "dynatemp_exponent", "mirostat_tau"):
            _check_real(name, getattr(self, name), low=0.0)
        _check_real("dry_base", self.dry_base, low=1.0)
        _check_integer("dry_allowed_length", self.dry_allowed_length, low=0)
        last_n = self.dry_penalty_last_n
        _check_integer("dry_penalty_last_n", last_n, low=-1, note="; -1: all, 0: none")
        mode = self.mirostat_mode
        _check_integer("mirostat_mode", mode, low=0, high=2, note="; 0: no mirostat")
        _check_real("adaptive_target", self.adaptive_target, high=1.0, note="; below 0: off")
        _check_real("adaptive_decay", self.adaptive_decay, low=0.0, high=0.99)

    @property
    def is_greedy(self) -> bool:
        """Whether the largest logit is taken, without a draw."""
        return self.temperature <= 0 >= self.dynatemp_range and "temperature" in self.samplers


def _samplers(given: object) -> tuple[str | Step, ...]:
    """The steps, with llama.cpp's names. Raises SamplingError for others."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise _error("samplers", given, f"a list of {', '.join(LETTERS)}, or of own steps")
    steps: list[str | Step] = []
    for i, entry in enumerate(given):
        if not isinstance(entry, str | Filter | LogitsProcessor):
            raise _error(f"samplers[{i}]", entry, "a name, or an instance of Filter or"
                         " LogitsProcessor")  # fmt: skip
        steps.append(sampler_name(entry) if isinstance(entry, str) else entry)
    return tuple(steps)


def _breakers(given: object) -> tuple[str, ...]:
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    texts = tuple(given) if is_list and isinstance(given, Sequence) else None
    if texts is None or not all(isinstance(text, str) and text for text in texts):
        raise _error("dry_sequence_breakers", given, "a list of texts that are not empty")
    return texts


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
        if low == -math.inf:
            must_be = "a finite number" if high == math.inf else f"a number of at most {high:g}"
        else:
            must_be = f"a number in {low:g} .. {high:g}"
            must_be = f"a number of at least {low:g}" if high == math.inf else must_be
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

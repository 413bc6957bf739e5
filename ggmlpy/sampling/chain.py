"""The steps that sampling parameters ask for, in their order."""

from __future__ import annotations

import copy
from dataclasses import replace

from ggmlpy.sampling.dry import Dry
from ggmlpy.sampling.feedback import AdaptiveP, MirostatV1, MirostatV2
from ggmlpy.sampling.filters import (
    MIN_TEMPERATURE,
    DynamicTemperature,
    MinP,
    Temperature,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Xtc,
)
from ggmlpy.sampling.infill import Infill
from ggmlpy.sampling.logits_processors import LogitBias, Penalties
from ggmlpy.sampling.params import SamplingParams
from ggmlpy.sampling.steps import Filter, LogitsProcessor, Processed, Setting, Step

_MIROSTAT = {1: MirostatV1, 2: MirostatV2}
_TEMPERATURES = (Temperature, DynamicTemperature)
_KEEP_LARGEST = (TopK, TopP, MinP, TopNSigma)  # which change nothing about the largest logit


def chain(params: SamplingParams, setting: Setting) -> tuple[list[LogitsProcessor], list[Filter]]:
    """The logits processors before the first filter, and the filters.

    Raises SamplingError where a step cannot begin.
    """
    processors: list[LogitsProcessor] = []
    filters: list[Filter] = []
    if params.logit_bias:
        processors.append(LogitBias(params.logit_bias, setting.n_vocab))
    for step in _steps(params):
        step.begin(setting)
        if isinstance(step, Filter):
            filters.append(step)
        elif isinstance(step, LogitsProcessor) and not filters:
            processors.append(step)
        elif isinstance(step, LogitsProcessor):
            behind = Processed(step)
            behind.begin(setting)
            filters.append(behind)
    return processors, filters


def _steps(params: SamplingParams) -> list[Step]:
    """The steps that have an effect, not yet begun."""
    steps: list[Step] = []
    for entry in params.samplers:
        made = copy.deepcopy(entry) if isinstance(entry, Step) else _named(entry, params)
        if made is None:
            continue
        if isinstance(entry, Step) or isinstance(made, LogitsProcessor):  # looks at the values
            steps = [replace(step, is_relative=False) if isinstance(step, _TEMPERATURES) else step
                     for step in steps]  # fmt: skip
        steps.append(made)
    if params.is_greedy:
        while steps and isinstance(steps[-1], _KEEP_LARGEST):
            steps.pop()
    elif params.mirostat_mode != 0:
        steps.append(_MIROSTAT[params.mirostat_mode](params.mirostat_tau, params.mirostat_eta))
    elif "adaptive_p" in params.samplers and params.adaptive_target >= 0:
        steps.append(AdaptiveP(params.adaptive_target, params.adaptive_decay))
    return steps


def _named(name: str, params: SamplingParams) -> Step | None:
    """A step by its name; None where it has no effect."""
    p, keep = params, max(params.min_keep, 1)
    match name:
        case "penalties" if p.penalty_last_n != 0 and (
            p.repeat_penalty != 1.0 or p.frequency_penalty != 0.0 or p.presence_penalty != 0.0
        ):
            return Penalties(p)
        case "dry" if p.dry_multiplier != 0.0 and p.dry_penalty_last_n != 0:
            return Dry(p)
        case "temperature":
            return None if p.is_greedy else _temperature(p)
    if p.mirostat_mode != 0:  # instead of the other filters
        return None
    match name:
        case "top_n_sigma" if p.top_n_sigma > 0.0:
            return TopNSigma(p.top_n_sigma)
        case "top_k" if p.top_k > 0:
            return TopK(p.top_k)
        case "top_p" if p.top_p < 1.0:
            return TopP(p.top_p, keep)
        case "min_p" if p.min_p > 0.0:
            return MinP(p.min_p, keep)
        case "infill":
            return Infill()
    if p.is_greedy:  # these two may drop the most probable token
        return None
    match name:
        case "typ_p" if p.typical_p < 1.0:
            return Typical(p.typical_p, keep)
        case "xtc" if p.xtc_probability > 0.0 and p.xtc_threshold <= 0.5:
            return Xtc(p.xtc_probability, p.xtc_threshold, keep)
    return None


def _temperature(p: SamplingParams) -> Filter | None:
    if p.dynatemp_range > 0.0:
        return DynamicTemperature(p.temperature, p.dynatemp_range, p.dynatemp_exponent)
    return None if p.temperature == 1.0 else Temperature(max(p.temperature, MIN_TEMPERATURE))

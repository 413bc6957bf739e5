"""Engines that are compared must compute the same: of a short prompt, nearly equal logits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.engines import OPENVINO, EngineError, EngineProcess

Floats = NDArray[np.floating[Any]]
SAME_LOGPROB = 0.1  # between engines: rounding of weights and activations makes about 0.01
SAME_NMSE = 1e-2  # of logits: rounding of activations makes about 1e-4, another model 1
_N_TOKENS = 16  # of the prompt


def compare_logits(path: Path, n_prompt: int, engines: Sequence[EngineProcess]) -> float | None:
    """Both must compute the same: of the same prompt, whatever it is, nearly equal logits."""
    logits = [logits_of(e, n_prompt) for e in engines if e.name != OPENVINO]
    for engine in engines:
        if engine.name == OPENVINO:
            check_choice(path, logits[0], choice_of(engine, n_prompt))
    return check_same(path, logits)


def logits_of(engine: EngineProcess, n_prompt: int) -> Floats:
    """Of a short prompt, of at most `n_prompt` tokens."""
    engine.prompt(min(_N_TOKENS, n_prompt))
    return np.frombuffer(engine.logits(), "<f4")


def choice_of(engine: EngineProcess, n_prompt: int) -> tuple[int, float]:
    """OpenVINO's likeliest token of the same prompt, and its log-probability."""
    engine.prompt(min(_N_TOKENS, n_prompt))
    said = json.loads(engine.logits())
    return said["token"], said["logprob"]


def check_choice(path: Path, logits: Floats, choice: tuple[int, float]) -> None:
    """Raises EngineError where our log-probability of that token is not nearly the same."""
    token, theirs = choice
    wide = logits.astype(np.float64)
    shifted = wide - wide.max()
    ours = shifted[token] - np.log(np.exp(shifted).sum())
    if not abs(ours - theirs) < SAME_LOGPROB:
        raise EngineError(
            f"the engines do not compute the same: of {path.name} OpenVINO's likeliest token"
            f" {token} has the log-probability {theirs:.3f} there, and {ours:.3f} in ggmlpy"
        )


def check_same(path: Path, logits: Sequence[Floats]) -> float | None:
    """How much the two engines' logits differ; None of one engine. Raises EngineError."""
    if len(logits) < 2:
        return None
    difference = nmse(*logits)
    if difference < SAME_NMSE:
        return difference
    raise EngineError(
        f"the engines do not compute the same: their logits of {path.name} differ by an NMSE of"
        f" {difference:.2g}, at most {SAME_NMSE:g} is rounding"
    )


def nmse(a: Floats, b: Floats) -> float:
    """The mean squared difference in units of what `b` has; infinite where it has nothing alike."""
    if a.shape != b.shape or not b.any():
        return float("inf")
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(np.square(a - b).mean() / np.square(b).mean())

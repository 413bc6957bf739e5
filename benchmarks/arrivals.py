"""Requests that arrive at random, and what is made of the times at which they are answered.

Arrivals are a Poisson process: the times between them are exponential. Lengths of prompts and of
answers are log-normal, roughly as in conversations. All of it follows from a seed, so that every
engine gets the same requests. There is no engine here.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

# Cells of a sequence that stay free: llama.cpp's server ends an answer before it has used them all.
N_SPARE = 2


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal distribution of prompt and answer lengths, clipped to what a sequence holds."""

    prompt: float  # the median, in tokens
    answer: float
    sigma: float  # the standard deviation of the logarithm
    n_ctx_seq: int

    def draw(self, rng: random.Random) -> tuple[int, int]:
        """Tokens of a prompt and of its answer, at least one of each."""
        most = self.n_ctx_seq - N_SPARE
        n_prompt = _clipped(rng.lognormvariate(math.log(self.prompt), self.sigma), most - 1)
        n_answer = rng.lognormvariate(math.log(self.answer), self.sigma)
        return n_prompt, _clipped(n_answer, most - n_prompt)


def _clipped(length: float, most: int) -> int:
    return max(1, min(round(length), most))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it is made, its prompt, and how many tokens its answer has."""

    at_s: float
    prompt: tuple[int, ...]
    n_predict: int


def arrivals(n: int, rate: float, lengths: Lengths, n_vocab: int, seed: int) -> tuple[Arrival, ...]:
    """`n` requests at `rate` a second, the first at 0; all of them at 0 if the rate is inf.

    Lengths and tokens do not depend on the rate.
    """
    times, contents = random.Random(f"{seed} times"), random.Random(f"{seed} contents")
    made = []
    at_s = 0.0
    for _ in range(n):
        n_prompt, n_predict = lengths.draw(contents)
        prompt = tuple(contents.randrange(n_vocab) for _ in range(n_prompt))
        made.append(Arrival(at_s, prompt, n_predict))
        at_s += times.expovariate(1.0) / rate
    return tuple(made)


def in_step(requests: Sequence[Arrival], n_seqs: int, n_vocab: int, seed: int) -> list[Arrival]:
    """A request for each of `n_seqs` sequences, all at 0, each of the mean lengths of `requests`.

    Their prompts are different ones.
    """
    rng = random.Random(f"{seed} in step")
    n_prompt = round(statistics.fmean(len(request.prompt) for request in requests))
    n_predict = round(statistics.fmean(request.n_predict for request in requests))
    return [
        Arrival(0.0, tuple(rng.randrange(n_vocab) for _ in range(n_prompt)), n_predict)
        for _ in range(n_seqs)
    ]


Times = Sequence[
    Sequence[float]
]  # of the tokens of each request, in seconds from the first arrival


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast requests were answered. Times are seconds."""

    tokens_per_s: float  # of all answers, from the first arrival to the last token
    loaded_tokens_per_s: float  # up to the last first token: later no request waits
    first_token_p50_s: float  # from the arrival, so waiting for a sequence is part of it
    first_token_p99_s: float
    between_tokens_p50_s: float  # of one answer, in all answers
    between_tokens_p99_s: float


def speed(requests: Sequence[Arrival], times: Times) -> Speed:
    """The figures of requests whose tokens came at these times."""
    first = [mine[0] - request.at_s for request, mine in zip(requests, times, strict=True)]
    between = [later - earlier for mine in times for earlier, later in pairwise(mine)]
    everything = [at for mine in times for at in mine]
    loaded_s = max(mine[0] for mine in times)
    return Speed(
        tokens_per_s=len(everything) / max(everything),
        loaded_tokens_per_s=sum(at <= loaded_s for at in everything) / loaded_s,
        first_token_p50_s=percentile(first, 50),
        first_token_p99_s=percentile(first, 99),
        between_tokens_p50_s=percentile(between, 50),
        between_tokens_p99_s=percentile(between, 99),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest values; 0 for no values."""
    return float(np.percentile(values, percent)) if values else 0.0


def waste(steps: Iterable[tuple[int, int]]) -> float:
    """The mean share of reserved cells that hold no token, of (reserved, held) in each step.

    Steps in which nothing is reserved do not count; 0 if none does.
    """
    shares = [1 - held / reserved for reserved, held in steps if reserved]
    return statistics.fmean(shares) if shares else 0.0

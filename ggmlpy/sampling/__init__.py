"""From logits to the next token.

In: the logits of one sequence. Out: a token.

    params.py              SamplingParams: the parameters, with their ranges
    names.py               the names of steps that it orders
    steps.py               what a step is: LogitsProcessor, Filter
    logits_processors.py   steps that change logits: logit_bias, penalties
    dry.py                 another one: DRY
    candidates.py          the tokens that can still be drawn, the search for the largest logits
    filters.py             steps that drop tokens: top_k, typ_p, top_p, min_p, top_n_sigma, xtc;
                           temperatures
    infill.py              another one: infill
    feedback.py            steps that follow what was drawn: mirostat, adaptive_p
    chain.py               the steps in their order
    compiled.py            the usual filters and the draw in compiled code
    stream.py              random numbers with a seed
    sampler.py             Sampler: the chain of these steps, and a draw
"""

from __future__ import annotations

from ggmlpy.sampling.candidates import Candidates
from ggmlpy.sampling.params import SamplingParams
from ggmlpy.sampling.sampler import Sampler
from ggmlpy.sampling.steps import Filter, LogitsProcessor, Setting, SparseProcessor

__all__ = [
    "Candidates",
    "Filter",
    "LogitsProcessor",
    "Sampler",
    "SamplingParams",
    "Setting",
    "SparseProcessor",
]

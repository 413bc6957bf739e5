"""From logits to the next token.

In: the logits of one sequence. Out: a token.

    params.py              SamplingParams: the parameters, with their ranges
    logits_processors.py   steps that change logits: logit_bias, penalties
    candidates.py          the tokens that can still be drawn, the search for the largest logits
    filters.py             steps that drop tokens: top_k, typical_p, top_p, min_p; temperature
    compiled.py            the usual filters and the draw in compiled code
    sampler.py             Sampler: the chain of these steps, and a draw with a seed
"""

from __future__ import annotations

from ggmlpy.sampling.params import SamplingParams
from ggmlpy.sampling.sampler import Sampler

__all__ = ["Sampler", "SamplingParams"]

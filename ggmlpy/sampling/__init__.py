"""From logits to the next token.

In: the logits of one sequence. Out: a token.

    params.py       SamplingParams: the knobs, with their ranges
    edits.py        steps that change single logits: logit_bias, penalties
    candidates.py   the tokens still in play, and the search for the largest logits
    filters.py      steps that cut and reshape: top_k, typical_p, top_p, min_p, temperature
    compiled.py     the usual filters and the draw in compiled code
    sampler.py      Sampler: runs the steps in order, draws with a seed
"""

from __future__ import annotations

from ggmlpy.sampling.params import SamplingParams
from ggmlpy.sampling.sampler import Sampler

__all__ = ["Sampler", "SamplingParams"]

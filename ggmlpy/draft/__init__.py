"""Speculative decoding: what proposes tokens that a model then checks together.

In: the tokens of sequences. Out: for each a draft of what may come next. The engine runs a draft
behind the last token of its sequence, in one step, and keeps it as far as it is what sampling
chooses: the text is the same as without drafts.

    base.py     Drafter: the interface; functions of users as drafters
    lookup.py   PromptLookup: what followed the same tokens before
    model.py    DraftModel: a smaller model
    opening.py  a drafter from what `Llama(draft_model=…)` is given
    length.py   how long the drafts of a sequence are, by how many of their tokens were accepted

Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023.
"""

from __future__ import annotations

from ggmlpy.draft.base import Asked, Drafter
from ggmlpy.draft.length import DraftLength
from ggmlpy.draft.lookup import PromptLookup
from ggmlpy.draft.model import DraftModel
from ggmlpy.draft.opening import DraftSource, Loaded, open_drafter

__all__ = [
    "Asked",
    "DraftLength",
    "DraftModel",
    "DraftSource",
    "Drafter",
    "Loaded",
    "PromptLookup",
    "open_drafter",
]

"""Chooses the tokens of a step: chunks of prompts beside decode steps, within a budget.

    sequence                     tokens in this step
    decodes                      1
    prompt, none decodes         its share of n_ubatch
    prompt, any sequence decodes its share of what `token_budget` leaves beside the decoding ones

A sequence decodes if one token of it is pending. The budget bounds how long a step takes, and with
it the time between two tokens of a sequence, however long the prompts of others are (chunked
prefill: Agrawal et al., Sarathi-Serve, 2024). Decoding sequences run in every step. At least
two tokens are left for prompts, so that a small budget stops neither the oldest nor the shortest.

Prompts of the lowest `priority` value come first; others get what these leave. Among equals the
oldest prompt gets half of the share, and the rest goes to the shortest ones. So no prompt waits for
more than twice the tokens of itself and of those before it, and a short one does not wait for the
long one before it. In order of arrival alone it would; equal parts would delay all prompts to the
end of the longest, and take many small chunks, each of which reads the K and V of its sequence
again. `tests/engine/test_schedule.py` compares the three.

If more sequences are to run than a ubatch has tokens, they take turns, one token each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Protocol

# Products on a CPU are limited by computation, not by reading weights, from about 32 tokens on, so
# that larger steps hardly make prompts faster: on 2 cores of an AMD EPYC (Zen 4) Llama-3.2-1B q4_0
# runs 277 tokens/s of a prompt in ubatches of 512, and decodes 233 tokens/s in steps of 32. There
# 128 tokens take 0.46 s, and 512 take 1.85 s.
_LEAST_DEFAULT = 128
LEAST_PROMPT = 2  # tokens of prompts in a step: one for the oldest, one for the shortest


class Pending(Protocol):
    """What the choice depends on."""

    @property
    def id(self) -> int:
        """A number that is lower for earlier requests."""

    @property
    def priority(self) -> int:
        """Lower values go first."""

    @property
    def n_pending(self) -> int:
        """Tokens to process before the next one can be sampled, at least one."""

    @property
    def last_step(self) -> int:
        """The last step that processed tokens of it."""


def default_budget(n_seq_max: int) -> int:
    """A budget of which prompts get at least half, even if all other sequences decode."""
    return max(_LEAST_DEFAULT, 2 * n_seq_max)


def share_step(sequences: Sequence[Pending], n_ubatch: int, token_budget: int) -> list[int]:
    """How many tokens of each sequence the next step runs."""
    pending = [sequence.n_pending for sequence in sequences]
    n_decoding = pending.count(1)
    if n_decoding == len(pending) <= n_ubatch:
        return pending
    if n_decoding >= n_ubatch:
        return _take_turns(sequences, n_ubatch)
    n_tokens = n_ubatch
    if n_decoding:
        n_tokens = min(n_ubatch, max(token_budget, n_decoding + LEAST_PROMPT))
    counts = [int(n == 1) for n in pending]
    _share_prompts(sequences, pending, counts, n_tokens - n_decoding)
    return counts


def _share_prompts(
    sequences: Sequence[Pending], pending: list[int], counts: list[int], n_left: int
) -> None:
    """Add `n_left` tokens of prompts to `counts`."""
    prompts = [i for i, n in enumerate(pending) if n > 1]
    prompts.sort(key=lambda i: (sequences[i].priority, sequences[i].id))
    for _, group in groupby(prompts, key=lambda i: sequences[i].priority):
        equals = list(group)
        oldest = equals[0]
        counts[oldest] = min(pending[oldest], (n_left + 1) // 2)
        n_left -= counts[oldest]
        for i in sorted(equals, key=lambda i: pending[i] - counts[i]):
            n = min(pending[i] - counts[i], n_left)
            counts[i] += n
            n_left -= n


def _take_turns(sequences: Sequence[Pending], n_ubatch: int) -> list[int]:
    """One token of each of those that have waited for the most steps."""
    counts = [0] * len(sequences)
    waited = sorted(
        range(len(sequences)),
        key=lambda i: (sequences[i].last_step, sequences[i].priority, sequences[i].id),
    )
    for i in waited[:n_ubatch]:
        counts[i] = 1
    return counts

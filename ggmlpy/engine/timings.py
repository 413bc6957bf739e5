"""Durations of loading, prompt processing, decoding and sampling: of all requests, and of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class Timings:
    """Durations in seconds; rates in tokens per second, 0 if nothing ran.

    A generated token is sampled once, unless a grammar forces it, and decoded once, except for the
    last one.
    """

    load_s: float = 0.0
    n_prompt: int = 0  # prompt tokens that were run, without reused ones, and what was run again
    n_reused: int = 0  # prompt tokens that the cache or host memory held already
    n_restored: int = 0  # tokens that came from host memory, of prompts or of preempted sequences
    n_preempted: int = 0  # how often a sequence had to wait because the cache was full
    prompt_s: float = 0.0
    n_generated: int = 0
    n_forced: int = 0  # generated tokens that a grammar left no choice about: none was sampled
    n_decoded: int = 0  # generated tokens that were decoded
    decode_s: float = 0.0
    sample_s: float = 0.0
    n_drafted: int = 0  # tokens of drafts that were run
    n_accepted: int = 0  # of those, what sampling chose: they needed no step of their own
    draft_s: float = 0.0

    @property
    def prompt_rate(self) -> float:
        return self.n_prompt / self.prompt_s if self.prompt_s else 0.0

    @property
    def generation_rate(self) -> float:
        """Decoded tokens by the time of drafting, decoding and sampling."""
        spent_s = self.decode_s + self.sample_s + self.draft_s
        return self.n_decoded / spent_s if spent_s else 0.0

    @property
    def acceptance_rate(self) -> float:
        """The share of drafted tokens that were accepted, in 0 .. 1."""
        return self.n_accepted / self.n_drafted if self.n_drafted else 0.0

    def add(self, step: StepTimings) -> None:
        """Add a step, whose time is shared between prompts and decoding by their tokens."""
        n_decoding = step.n_decoded + step.n_drafted
        share_s = step.spent_s / (step.n_prompt + n_decoding)
        self.n_prompt += step.n_prompt
        self.prompt_s += share_s * step.n_prompt
        self.n_decoded += step.n_decoded
        self.decode_s += share_s * n_decoding

    def __str__(self) -> str:
        def row(label: str, seconds: float, n: int, unit: str) -> str:
            per = f" / {n:5d} {unit}" if n else ""
            rate = (
                f" ({1000 * seconds / n:8.3f} ms each, {n / seconds:9.1f}/s)"
                if n and seconds
                else ""
            )
            return f"{label:>10}: {1000 * seconds:9.2f} ms{per}{rate}"

        reused = f", {self.n_reused} reused from the cache" if self.n_reused else ""
        if self.n_restored:
            reused += f", {self.n_restored} restored from host memory"
        preempted = f", {self.n_preempted} times preempted" if self.n_preempted else ""
        is_drafting = bool(self.n_drafted)
        forced = f", {self.n_forced} forced by grammars" if self.n_forced else ""
        accepted = f", {self.n_accepted} accepted ({self.acceptance_rate:.0%})"
        return "\n".join(
            [
                row("load", self.load_s, 0, ""),
                row("prompt", self.prompt_s, self.n_prompt, "tokens") + reused,
                row("decode", self.decode_s, self.n_decoded, "tokens") + preempted,
                row("sample", self.sample_s, self.n_generated, "tokens") + forced,
                *([row("draft", self.draft_s, self.n_drafted, "tokens") + accepted] * is_drafting),
            ]
        )


@dataclass(frozen=True, slots=True)
class AnswerTimings:
    """Of one answer: how it ended, and what it has cost, in seconds as its reader sees them.

    Other requests run in the same steps, so that the durations of several answers overlap.
    """

    n_prompt: int = 0  # tokens of the prompt
    n_reused: int = 0  # of those, what the cache or host memory held already
    n_decoded: int = 0  # tokens of the answer
    n_drafts: int = 0  # drafts that were run for it
    n_drafted: int = 0  # their tokens
    n_accepted: int = 0  # of those, what sampling chose
    n_preempted: int = 0  # how often it had to wait because the cache was full
    waited_s: float = 0.0  # from its arrival to its start
    prompt_s: float = 0.0  # from there to its first token
    decode_s: float = 0.0  # from there to its end
    stop: str | None = None  # the stop string that ended it
    seq: int = -1  # the sequence in which it ended


class StepPart(NamedTuple):
    """What a step has run of one sequence, in tokens."""

    seq: int
    n_prompt: int
    n_decoded: int
    n_drafted: int


@dataclass(frozen=True, slots=True)
class StepTimings:
    """Of one step of an engine."""

    number: int = 0  # from 1 on
    n_sequences: int = 0  # that had tokens in it
    n_prompt: int = 0  # tokens of prompts
    n_decoded: int = 0
    n_drafted: int = 0
    spent_s: float = 0.0  # without sampling
    parts: tuple[StepPart, ...] = ()  # of the sequences, in the order of the batch

"""Metrics in Prometheus' text format, under llama-server's names and vLLM's.

An answer is counted once, at its end; gauges are read when somebody asks for them. So a token costs
nothing here. Sources: tools/server/README.md of llama.cpp, docs.vllm.ai/en/stable/usage/metrics
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ggmlpy.engine.timings import AnswerTimings
from ggmlpy.errors import MissingPackage
from ggmlpy.llama import Llama

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = tuple(m * 10.0**e for e in range(-4, 3) for m in (1, 2, 5))  # 0.1 ms to 500 s
_TOKENS = tuple(m * 10.0**e for e in range(6) for m in (1, 2, 5))


@dataclass(slots=True)
class Histogram:
    """Counts of values up to each limit, and their sum."""

    limits: Sequence[float]
    sum: float = 0.0
    counts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.limits) + 1)

    def add(self, value: float, n: int = 1) -> None:
        """Count a value `n` times."""
        self.counts[bisect_left(self.limits, value)] += n
        self.sum += value * n

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: how many are at most each limit."""
        found, n = [], 0
        for limit, count in zip([*self.limits, float("inf")], self.counts, strict=True):
            n += count
            found.append(("+Inf" if limit == float("inf") else f"{limit:g}", float(n)))
        return found


def _seconds() -> Histogram:
    return Histogram(_SECONDS)


def _tokens() -> Histogram:
    return Histogram(_TOKENS)


@dataclass(slots=True)
class Totals:
    """What the answers of one model took together, until now."""

    n_prompt: int = 0
    n_reused: int = 0
    n_decoded: int = 0
    n_drafts: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_preempted: int = 0
    n_longest: int = 0  # tokens of a prompt with its answer
    prompt_s: float = 0.0
    decode_s: float = 0.0
    ends: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0})
    first_token: Histogram = field(default_factory=_seconds)
    between_tokens: Histogram = field(default_factory=_seconds)
    per_token: Histogram = field(default_factory=_seconds)
    whole: Histogram = field(default_factory=_seconds)
    queue: Histogram = field(default_factory=_seconds)
    prefill: Histogram = field(default_factory=_seconds)
    decode: Histogram = field(default_factory=_seconds)
    inference: Histogram = field(default_factory=_seconds)
    prompt_tokens: Histogram = field(default_factory=_tokens)
    answer_tokens: Histogram = field(default_factory=_tokens)

    def add(self, timings: AnswerTimings, spent_s: float, reason: str) -> None:
        """Count an answer, which took `spent_s` with its time in the server's queue."""
        self.n_prompt += timings.n_prompt
        self.n_reused += timings.n_reused
        self.n_decoded += timings.n_decoded
        self.n_drafts += timings.n_drafts
        self.n_drafted += timings.n_drafted
        self.n_accepted += timings.n_accepted
        self.n_preempted += timings.n_preempted
        self.n_longest = max(self.n_longest, timings.n_prompt + timings.n_decoded)
        self.prompt_s += timings.prompt_s
        self.decode_s += timings.decode_s
        self.ends[reason] = self.ends.get(reason, 0) + 1
        self.first_token.add(spent_s - timings.decode_s)
        self.whole.add(spent_s)
        self.queue.add(max(0.0, spent_s - timings.decode_s - timings.prompt_s))
        self.prefill.add(timings.prompt_s)
        self.decode.add(timings.decode_s)
        self.inference.add(timings.prompt_s + timings.decode_s)
        self.prompt_tokens.add(timings.n_prompt)
        self.answer_tokens.add(timings.n_decoded)
        n_between = timings.n_decoded - 1
        if n_between > 0:
            self.per_token.add(timings.decode_s / n_between)
            self.between_tokens.add(timings.decode_s / n_between, n_between)


@dataclass(frozen=True, slots=True)
class Load:
    """What a model does now."""

    n_running: int = 0
    n_waiting: int = 0
    cache_usage: float = 0.0  # share of the cells, 0 to 1
    n_steps: int = 0
    n_sequences_run: int = 0  # of all steps together

    @classmethod
    def of(cls, llm: Llama, n_waiting: int) -> Load:
        """On the engine's thread. `n_waiting` sequences wait in front of the engine."""
        engine = llm.engine
        return cls(
            len(engine.slots.running()),
            engine.n_waiting + n_waiting,
            engine.context.memory.n_used() / engine.context.sizes.n_ctx,
            engine.last_step.number,
            engine.n_sequences_run,
        )


class Metrics:
    """The metrics of a server. Raises MissingPackage without prometheus-client."""

    def __init__(self) -> None:
        try:
            import prometheus_client
        except ImportError:
            raise MissingPackage(
                "--metrics needs the package prometheus-client: pip install 'ggmlpy[server]'"
            ) from None
        self._totals: dict[str, Totals] = {}
        self._loads: dict[str, Load] = {}  # when somebody asked last
        self._n_steps = 0  # of engines that are no more
        self._n_sequences_run = 0
        self._generate = prometheus_client.generate_latest

    def add(self, model: str, timings: AnswerTimings, spent_s: float, reason: str) -> None:
        """Count an answer of a model."""
        self._totals.setdefault(model, Totals()).add(timings, spent_s, reason)

    def now(self, loads: dict[str, Load]) -> Snapshot:
        """All metrics now. `loads` has those of the models that are loaded."""
        for model, before in self._loads.items():
            load = loads.get(model, Load())
            if load.n_steps < before.n_steps:  # it was unloaded: counters go on from there
                self._n_steps += before.n_steps
                self._n_sequences_run += before.n_sequences_run
        self._loads = loads
        for model in sorted(loads):
            self._totals.setdefault(model, Totals())
        n_steps = self._n_steps + sum(each.n_steps for each in loads.values())
        n_run = self._n_sequences_run + sum(each.n_sequences_run for each in loads.values())
        return Snapshot(deepcopy(self._totals), loads, n_steps, n_run)

    def text(self, snapshot: Snapshot) -> bytes:
        """In Prometheus' format. Any thread may make it."""
        return self._generate(snapshot)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The metrics at one moment."""

    _totals: dict[str, Totals]
    _loads: dict[str, Load]
    _n_steps: int
    _n_sequences_run: int

    def collect(self) -> Iterator[Metric]:
        """For prometheus-client."""
        yield from self._of_llama_server()
        yield from self._of_vllm()

    def _of_llama_server(self) -> Iterator[Metric]:
        """Of all models together: llama-server has one."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        totals, loads = list(self._totals.values()), list(self._loads.values())
        n_prompt = sum(each.n_prompt - each.n_reused for each in totals)
        n_decoded = sum(each.n_decoded for each in totals)
        prompt_s = sum(each.prompt_s for each in totals)
        decode_s = sum(each.decode_s for each in totals)
        n_steps, n_run = self._n_steps, self._n_sequences_run
        counters = {
            "prompt_tokens": ("Tokens of prompts that were run.", n_prompt),
            "prompt_tokens_cached": (
                "Tokens of prompts that the cache held.",
                sum(each.n_reused for each in totals),
            ),
            "prompt_seconds": ("Seconds from an answer's start to its first token.", prompt_s),
            "tokens_predicted": ("Tokens of answers.", n_decoded),
            "tokens_predicted_seconds": (
                "Seconds from an answer's first token to its end.",
                decode_s,
            ),
            "n_decode": ("Steps of the engine.", n_steps),
            "spec_decode_num_drafts": ("Drafts.", sum(each.n_drafts for each in totals)),
            "spec_decode_num_draft_tokens": (
                "Tokens of drafts.",
                sum(each.n_drafted for each in totals),
            ),
            "spec_decode_num_accepted_tokens": (
                "Tokens of drafts that were accepted.",
                sum(each.n_accepted for each in totals),
            ),
        }
        gauges = {
            "prompt_tokens_seconds": (
                "Tokens of prompts by their seconds.",
                n_prompt / prompt_s if prompt_s else 0.0,
            ),
            "predicted_tokens_seconds": (
                "Tokens of answers by their seconds.",
                n_decoded / decode_s if decode_s else 0.0,
            ),
            "requests_processing": ("Sequences that run.", sum(e.n_running for e in loads)),
            "requests_deferred": ("Sequences that wait.", sum(e.n_waiting for e in loads)),
            "n_tokens_max": (
                "Most tokens of a prompt with its answer.",
                max((each.n_longest for each in totals), default=0),
            ),
            "n_busy_slots_per_decode": (
                "Sequences in a step, on average.",
                n_run / n_steps if n_steps else 0.0,
            ),
        }
        for name, (about, value) in counters.items():
            yield CounterMetricFamily(f"llamacpp:{name}", about, value)
        for name, (about, value) in gauges.items():
            yield GaugeMetricFamily(f"llamacpp:{name}", about, value)

    def _of_vllm(self) -> Iterator[Metric]:
        """Of each model, by the label `model_name`."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        labels = ["model_name"]
        gauges = {
            "num_requests_running": ("Sequences that run.", "n_running"),
            "num_requests_waiting": ("Sequences that wait.", "n_waiting"),
            "kv_cache_usage_perc": ("Share of the cache in use, 0 to 1.", "cache_usage"),
        }
        for name, (about, key) in gauges.items():
            gauge = GaugeMetricFamily(f"vllm:{name}", about, labels=labels)
            for model, load in self._loads.items():
                gauge.add_metric([model], getattr(load, key))
            yield gauge
        counters = {
            "prompt_tokens": ("Tokens of prompts.", "n_prompt"),
            "generation_tokens": ("Tokens of answers.", "n_decoded"),
            "prefix_cache_queries": ("Tokens that were looked up in the cache.", "n_prompt"),
            "prefix_cache_hits": ("Tokens that were found there.", "n_reused"),
            "num_preemptions": ("Answers that waited for a full cache.", "n_preempted"),
            "spec_decode_num_drafts": ("Drafts.", "n_drafts"),
            "spec_decode_num_draft_tokens": ("Tokens of drafts.", "n_drafted"),
            "spec_decode_num_accepted_tokens": ("Those that were accepted.", "n_accepted"),
        }
        for name, (about, key) in counters.items():
            counter = CounterMetricFamily(f"vllm:{name}", about, labels=labels)
            for model, totals in self._totals.items():
                counter.add_metric([model], getattr(totals, key))
            yield counter
        ends = CounterMetricFamily(
            "vllm:request_success",
            "Complete answers, by why they ended.",
            labels=[*labels, "finished_reason"],
        )
        for model, totals in self._totals.items():
            for reason, n in totals.ends.items():
                ends.add_metric([model, reason], n)
        yield ends
        histograms = {
            "time_to_first_token_seconds": ("Arrival to first token.", "first_token"),
            "inter_token_latency_seconds": (
                "Between tokens; each counts as the mean of its answer.",
                "between_tokens",
            ),
            "request_time_per_output_token_seconds": ("Mean of each answer.", "per_token"),
            "e2e_request_latency_seconds": ("Arrival to end.", "whole"),
            "request_queue_time_seconds": ("Arrival to start.", "queue"),
            "request_prefill_time_seconds": ("Start to first token.", "prefill"),
            "request_decode_time_seconds": ("First token to end.", "decode"),
            "request_inference_time_seconds": ("Start to end.", "inference"),
            "request_prompt_tokens": ("Tokens of a prompt.", "prompt_tokens"),
            "request_generation_tokens": ("Tokens of an answer.", "answer_tokens"),
        }
        for name, (about, key) in histograms.items():
            histogram = HistogramMetricFamily(f"vllm:{name}", about, labels=labels)
            for model, totals in self._totals.items():
                each: Histogram = getattr(totals, key)
                histogram.add_metric([model], each.buckets(), each.sum)
            yield histogram

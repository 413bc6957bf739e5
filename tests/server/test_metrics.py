"""/metrics: names, and what is counted."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy.engine.timings import AnswerTimings
from ggmlpy.server import Settings
from ggmlpy.server.metrics import Histogram, Load, Metrics, Totals
from tests.server.conftest import MODEL, Server, running, wait_for

parser = pytest.importorskip("prometheus_client.parser")
# Those of llama-server's /metrics, of the version that tests/server/llama_server.json is of.
LLAMA_SERVERS = """
prompt_tokens_total prompt_tokens_cached_total prompt_seconds_total tokens_predicted_total
tokens_predicted_seconds_total n_decode_total n_tokens_max spec_decode_num_draft_tokens_total
spec_decode_num_accepted_tokens_total spec_decode_num_drafts_total prompt_tokens_seconds
predicted_tokens_seconds requests_processing requests_deferred n_busy_slots_per_decode
"""
VLLMS = """
num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries_total
prefix_cache_hits_total prompt_tokens_total generation_tokens_total request_success_total
time_to_first_token_seconds_count inter_token_latency_seconds_sum e2e_request_latency_seconds_bucket
request_queue_time_seconds_count request_prefill_time_seconds_sum request_decode_time_seconds_sum
request_inference_time_seconds_count num_preemptions_total spec_decode_num_drafts_total
request_time_per_output_token_seconds_count request_prompt_tokens_sum request_generation_tokens_sum
"""
P = {"prompt": "Once upon a time", "temperature": 0}


@pytest.fixture(scope="module")
def measured() -> Iterator[Server]:
    with running(Settings(metrics=True)) as server:
        yield server


def scraped(server: Server) -> dict[tuple[str, str], float]:
    """Values by name and by what their labels say besides the model's name."""
    response = httpx.get(f"{server.url}/metrics", timeout=60)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in parser.text_string_to_metric_families(response.text):
        for sample in family.samples:
            more = {k: v for k, v in sample.labels.items() if k != "model_name"}
            assert sample.labels.get("model_name", MODEL) == MODEL
            found[sample.name, ",".join(more.values())] = sample.value
    return found


def test_all_names_are_there_before_any_request(measured: Server) -> None:
    names = {name for name, _ in scraped(measured)}
    assert {f"llamacpp:{name}" for name in LLAMA_SERVERS.split()} <= names
    assert {f"vllm:{name}" for name in VLLMS.split()} <= names


def test_what_answers_took_is_counted_once(measured: Server) -> None:
    before = scraped(measured)
    with httpx.Client(base_url=measured.url, timeout=60) as client:
        made = [
            client.post("/v1/completions", json={**P, "max_tokens": 7, "n": 2}).json()["usage"],
            client.post("/v1/completions", json={**P, "max_tokens": 9, "stop": [" was"]}).json()[
                "usage"
            ],
        ]
        with client.stream(
            "POST", "/completion", json={**P, "n_predict": 5, "stream": True}
        ) as stream:
            assert len(list(stream.iter_lines())) > 5
    wait_for(measured.is_idle)
    after = scraped(measured)

    def grown(name: str, label: str = "") -> float:
        return after[name, label] - before.get((name, label), 0.0)

    n_decoded = sum(each["completion_tokens"] for each in made) + 5
    assert grown("vllm:generation_tokens_total") == n_decoded
    assert grown("llamacpp:tokens_predicted_total") == n_decoded
    assert grown("vllm:prompt_tokens_total") == 4 * 5  # answers have a prompt of five tokens each
    run, cached = grown("llamacpp:prompt_tokens_total"), grown("vllm:prefix_cache_hits_total")
    assert run + cached == 4 * 5
    assert grown("llamacpp:prompt_tokens_cached_total") == cached >= 8
    assert grown("vllm:request_success_total", "length") == 3
    assert grown("vllm:request_success_total", "stop") == 1
    assert grown("vllm:request_generation_tokens_bucket", "5") == 2  # that of five, and " was"
    assert grown("vllm:inter_token_latency_seconds_count") == n_decoded - 4
    assert after["llamacpp:n_tokens_max", ""] == 12
    assert grown("llamacpp:n_decode_total") >= 7
    assert 1 <= after["llamacpp:n_busy_slots_per_decode", ""] <= 4
    spent = {
        name: grown(f"vllm:{name}_seconds_sum")
        for name in ("e2e_request_latency", "time_to_first_token", "request_decode_time")
    }
    assert spent["e2e_request_latency"] == pytest.approx(
        spent["time_to_first_token"] + spent["request_decode_time"]
    )
    assert after["vllm:num_requests_running", ""] == 0
    assert 0 < after["vllm:kv_cache_usage_perc", ""] < 0.2


def test_it_is_off_unless_asked_for(client: httpx.Client) -> None:
    response = client.get("/metrics")
    assert response.status_code == 501
    assert "--metrics" in response.json()["error"]["message"]


def test_a_scrape_keeps_no_model_awake(measured: Server) -> None:
    used = measured.models.all[0].last_used
    scraped(measured)
    assert measured.models.all[0].last_used == used
    assert measured.models.all[0].n_using == 0


@given(st.lists(st.floats(0, 2000), max_size=30))
def test_buckets_are_those_of_a_count(values: list[float]) -> None:
    limits = (0.5, 1.0, 10.0)
    histogram = Histogram(limits)
    for value in values:
        histogram.add(value)
    wanted = [sum(value <= limit for value in values) for limit in limits] + [len(values)]
    assert [n for _, n in histogram.buckets()] == wanted
    assert histogram.sum == pytest.approx(sum(values))


def test_the_queue_is_what_is_left() -> None:
    totals = Totals()
    totals.add(AnswerTimings(n_prompt=8, n_decoded=3, prompt_s=0.5, decode_s=2.0), 4.0, "stop")
    assert (totals.queue.sum, totals.first_token.sum, totals.between_tokens.sum) == (1.5, 2.0, 2.0)
    assert sum(totals.between_tokens.counts) == 2


def test_counters_never_fall() -> None:
    """A model that is unloaded, and loaded anew, begins with its steps at 0."""
    kept = Metrics()

    def n_decode(**n_steps: int) -> float:
        loads = {name: Load(n_steps=n, n_sequences_run=2 * n) for name, n in n_steps.items()}
        text = kept.text(kept.now(loads)).decode()
        values = {s.name: s.value for f in parser.text_string_to_metric_families(text)
                  for s in f.samples if s.name.startswith("llamacpp:")}  # fmt: skip
        assert values["llamacpp:n_busy_slots_per_decode"] == 2
        return float(values["llamacpp:n_decode_total"])

    assert n_decode(a=5, b=3) == 8
    assert n_decode(a=7) == 10
    assert n_decode(a=8, b=1) == 12
    assert n_decode(a=2, b=1) == 14
    assert n_decode() == 14


def test_a_snapshot_stays_as_it_is() -> None:
    kept = Metrics()
    kept.add("m", AnswerTimings(n_prompt=3, n_decoded=2), 1.0, "stop")
    snapshot = kept.now({})
    before = kept.text(snapshot)
    kept.add("m", AnswerTimings(n_prompt=3, n_decoded=2), 1.0, "other")
    kept.add("n", AnswerTimings(n_prompt=3, n_decoded=2), 1.0, "stop")
    assert kept.text(snapshot) == before
    assert kept.text(kept.now({})) != before

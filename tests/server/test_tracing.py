"""Spans of requests, by the SDK's exporter to memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.conftest import MODEL, Server, running, wait_for

pytest.importorskip("opentelemetry.sdk", reason="the extra ggmlpy[otel] is not installed")
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ggmlpy.server.tracing import Traces

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def traced() -> Iterator[tuple[Server, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with running() as server:
        server.app.state.service.traces = Traces(provider)
        yield server, exporter


def span_of(
    traced: tuple[Server, InMemorySpanExporter], path: str, body: Any, **headers: str
) -> Any:
    server, exporter = traced
    exporter.clear()
    httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=60)
    wait_for(lambda: len(exporter.get_finished_spans()) == 1)
    return exporter.get_finished_spans()[0]


def test_a_request_is_a_span_of_its_callers_trace(
    traced: tuple[Server, InMemorySpanExporter],
) -> None:
    body = {"prompt": "Nobody sees this", "max_tokens": 3, "temperature": 0, "n": 2}
    span = span_of(traced, "/v1/completions", body, traceparent=f"00-{TRACE}-{PARENT}-01")
    assert (span.name, span.kind) == (f"text_completion {MODEL}", SpanKind.SERVER)
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    found = dict(span.attributes)
    wanted = {
        "http.request.method": "POST",
        "url.path": "/v1/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0,
        "gen_ai.response.model": MODEL,
        "gen_ai.response.finish_reasons": ("length", "length"),
        "gen_ai.usage.output_tokens": 6,
    }
    assert {name: found[name] for name in wanted} == wanted
    assert found["gen_ai.usage.input_tokens"] > 6
    spent_s = (span.end_time - span.start_time) / 1e9
    assert 0 < found["gen_ai.latency.time_in_model_decode"] < spent_s < 60
    assert "Nobody sees" not in str(found)
    assert span.status.status_code is StatusCode.UNSET


def test_a_refused_request_has_its_status(
    traced: tuple[Server, InMemorySpanExporter],
) -> None:
    span = span_of(traced, "/tokenize", {"content": 3})
    assert span.name == "POST /tokenize"
    assert span.attributes["http.response.status_code"] == 400
    assert span.attributes["error.type"] == "400"
    assert span.parent is None


def test_a_number_that_otlp_does_not_have_is_left_out(
    traced: tuple[Server, InMemorySpanExporter],
) -> None:
    body = {"messages": [], "seed": 2**63, "max_tokens": 2}
    span = span_of(traced, "/chat/completions", body)
    assert span.attributes["http.response.status_code"] == 400
    assert span.attributes["gen_ai.operation.name"] == "chat"
    assert "gen_ai.request.seed" not in span.attributes
    assert span.attributes["gen_ai.request.max_tokens"] == 2

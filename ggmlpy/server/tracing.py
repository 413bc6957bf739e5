"""OpenTelemetry traces: a span for each request, with the attributes of the GenAI conventions.

Spans go to a collector by OTLP over HTTP, and continue the trace of a `traceparent` header. The
environment's OTEL_… variables count, as in all programs that use the SDK. Source of the names:
opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import ggmlpy
from ggmlpy.errors import MissingPackage
from ggmlpy.server.logs import Answered

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/responses": "chat",
    "/v1/completions": "text_completion",
    "/completion": "text_completion",
    "/completions": "text_completion",
    "/infill": "text_completion",
    "/v1/embeddings": "embeddings",
    "/embedding": "embeddings",
    "/embeddings": "embeddings",
}
# Fields of bodies that are attributes, where they are numbers.
_REQUEST = ("max_tokens", "temperature", "top_p", "top_k", "seed", "frequency_penalty",
            "presence_penalty")  # fmt: skip


class Traces:
    """Makes spans by a tracer provider of the SDK."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("ggmlpy.server", ggmlpy.__version__)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def open(cls, endpoint: str) -> Traces:
        """Send spans to the URL of a collector, in a thread. Raises MissingPackage."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise MissingPackage(
                f"traces need the package {error.name}: pip install 'ggmlpy[otel]'"
            ) from None
        named = Resource.create({"service.name": "ggmlpy", "service.version": ggmlpy.__version__})
        provider = TracerProvider(resource=named)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        return cls(provider)

    def record(
        self,
        id: str,
        method: str,
        path: str,
        status: int,
        spent_s: float,
        headers: Mapping[str, str],
        answers: Sequence[Answered],
        body: Mapping[str, Any],
    ) -> None:
        """Make the span of a request that has ended just now, without its texts."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        ended_ns = time.time_ns()
        operation = _OPERATIONS.get(path)
        model = answers[0].model if answers else ""
        name = f"{operation} {model}".strip() if operation else f"{method} {path}"
        span = self._tracer.start_span(
            name,
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            start_time=ended_ns - int(spent_s * 1e9),
            attributes={
                "http.request.method": method,
                "url.path": path,
                "http.response.status_code": status,
                "gen_ai.response.id": id,
                **({"gen_ai.operation.name": operation} if operation else {}),
                **_of_body(body),
                **(_of_answers(answers) if answers else {}),
            },
        )
        if status >= 400:
            span.set_attribute("error.type", str(status))
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended_ns)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def _of_body(body: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        f"gen_ai.request.{name}": body[name]
        for name in _REQUEST
        # OTLP has 64 bits: one larger number, which was refused, would cost all spans sent with it.
        if isinstance(body.get(name), int | float) and abs(body[name]) < 2**63
    }
    if isinstance(body.get("model"), str):
        found["gen_ai.request.model"] = body["model"][:200]
    return found


def _of_answers(answers: Sequence[Answered]) -> dict[str, Any]:
    timings = [each.timings for each in answers]
    return {
        "gen_ai.provider.name": "ggmlpy",
        "gen_ai.response.model": answers[0].model,
        "gen_ai.response.finish_reasons": [each.reason for each in answers],
        "gen_ai.usage.input_tokens": sum(each.n_prompt for each in timings),
        "gen_ai.usage.cache_read.input_tokens": sum(each.n_reused for each in timings),
        "gen_ai.usage.output_tokens": sum(each.n_decoded for each in timings),
        # vLLM's names of durations, in seconds.
        "gen_ai.latency.time_in_queue": max(each.waited_s for each in timings),
        "gen_ai.latency.time_in_model_prefill": max(each.prompt_s for each in timings),
        "gen_ai.latency.time_in_model_decode": max(each.decode_s for each in timings),
    }

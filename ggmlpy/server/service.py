"""What all requests of a server share."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ggmlpy.server.hosted import Models
from ggmlpy.server.metrics import Metrics
from ggmlpy.server.settings import Settings
from ggmlpy.server.stored_responses import ResponseStore
from ggmlpy.server.tracing import Traces

_N_THREADS = 2  # that make prompts: enough for thousands a second


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_N_THREADS, "ggmlpy-prompts")


@dataclass(eq=False, slots=True)
class Service:
    """A server's models and settings."""

    settings: Settings
    models: Models
    read_settings: Callable[[], Settings] | None = None  # on SIGHUP
    responses: ResponseStore = field(init=False)
    pool: ThreadPoolExecutor = field(default_factory=_pool)
    metrics: Metrics | None = None  # None: none are kept
    traces: Traces | None = None  # None: none are made

    def __post_init__(self) -> None:
        self.responses = ResponseStore(self.settings.max_stored_bytes)

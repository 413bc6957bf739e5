"""What a server is told at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LOCALHOST = "localhost"  # as an origin: any port of this machine


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes are in bytes, durations in seconds."""

    api_keys: frozenset[str] = frozenset()  # of which a request must have one; none: it need not
    cors_origins: tuple[str, ...] = (LOCALHOST,)  # of pages whose scripts may read answers
    max_body_bytes: int = 32 * 2**20
    max_stored_bytes: int = 64 * 2**20  # of responses that are kept; 0: none are
    max_waiting: int = 512  # sequences that wait for one model; more are refused with 429
    body_timeout_s: float = 60.0  # in which a body must arrive
    send_timeout_s: float = 60.0  # in which a client must read what is sent
    timeout_s: float = 3600.0  # for a whole request, with its time in the queue
    ping_s: float = 15.0  # after which a stream that is silent sends a comment
    pooling: str | None = None  # a name of engine.embeddings.Pooling; None: what the file says
    slots: bool = True  # whether /slots is there
    metrics: bool = False  # whether /metrics is there
    props: bool = False  # whether POST /props is
    page: bool = True  # whether / is
    otlp_endpoint: str | None = None  # URL of a collector of traces
    log_prompts: bool = False  # whether logs have the bodies of requests
    slot_save_path: str | None = None  # the folder of saved slots
    defaults: Mapping[str, Any] = field(default_factory=dict)  # options of requests without them
    chat_defaults: Mapping[str, Any] = field(default_factory=dict)  # and of chats alone

    def template_kwargs(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The variables of a template that a request gives, over those of all chats."""
        return {**self.chat_defaults.get("chat_template_kwargs", {}), **given}

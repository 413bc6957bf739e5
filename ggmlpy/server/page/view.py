"""GET /engine: what the engine does, as server-sent events, a few a second.

Counts and cells, no tokens and no text. A snapshot is taken between two steps, by the thread that
runs them, and costs it a copy of the table of cells; everything else is done in the pool. All who
watch a model get the same snapshots, and without anybody there are none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
from starlette.responses import Response

from ggmlpy.engine.engine import Engine
from ggmlpy.engine.request_state import RequestState
from ggmlpy.engine.slots import Slot
from ggmlpy.errors import GgmlpyError
from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.pages import PagedCells
from ggmlpy.memory.window import Flags
from ggmlpy.server.endpoint import Call
from ggmlpy.server.events import event
from ggmlpy.server.hosted import Hosted
from ggmlpy.server.protocol import ENDS_WITH_SERVER

INTERVAL_S = 0.25
_MOST_CELLS = 2**14  # of a cache that are told one by one; of larger ones so many groups


@dataclass(eq=False, slots=True)
class EngineView:
    """The last snapshot of one model."""

    hosted: Hosted
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    made_s: float = -INTERVAL_S
    made: bytes = b""

    async def latest(self, call: Call) -> bytes:
        """An event that is not older than half the interval."""
        async with self.lock:
            if monotonic() - self.made_s > INTERVAL_S / 2:
                self.made = await self._make(call)
                self.made_s = monotonic()
            return self.made

    async def _make(self, call: Call) -> bytes:
        """A model that is not loaded stays so."""
        hosted = self.hosted
        told: dict[str, Any] = {"model": hosted.name, "status": hosted.status.value}
        if not hosted.is_loaded:
            return event(told)
        llm, gate = hosted.llm, hosted.gate
        engine = llm.llama.engine
        try:
            state, members = await llm.answers.do(lambda: (snapshot(engine), _members(engine)))
        except GgmlpyError:  # it is being unloaded
            return event({**told, "status": hosted.status.value})
        told |= state
        told["queue"] = {
            "n_admitted": gate.n_inside,
            "n_waiting": gate.n_waiting,
            "n_waiting_in_engine": engine.n_waiting,
        }

        def encode() -> bytes:
            for each, streams in zip(told["caches"], members, strict=True):
                n_cells, n_each = each["n_cells"] // len(streams), each["n_each"]
                each["streams"] = [runs(stream, n_cells, n_each) for stream in streams]
            return event(told)

        return await call.in_pool(encode)


class EngineViews:
    """Those of a server's models."""

    def __init__(self) -> None:
        self._views: dict[Hosted, EngineView] = {}

    async def watch(self, call: Call) -> Response:
        """A stream of snapshots of the model that `?model=` names."""
        hosted = call.models.find(call.request.query_params.get("model"))
        view = self._views.setdefault(hosted, EngineView(hosted))
        call.request.scope[ENDS_WITH_SERVER] = True
        return call.stream(_events(call, view))


async def _events(call: Call, view: EngineView) -> AsyncGenerator[bytes, None]:
    while True:
        yield await view.latest(call)
        await asyncio.sleep(INTERVAL_S)


def snapshot(engine: Engine) -> dict[str, Any]:
    """What an engine does and has done, but for who holds which cell. Between two steps."""
    sizes, step, timings = engine.context.sizes, engine.last_step, engine.timings
    return {
        "time_s": monotonic(),
        "sizes": {
            "n_seq_max": sizes.n_seq_max,
            "n_ctx": sizes.n_ctx,
            "n_ctx_seq": sizes.n_ctx_seq,
            "n_ubatch": sizes.n_ubatch,
            "token_budget": engine.token_budget,
            "layout": sizes.layout,
            "page_size": sizes.page_size,
        },
        "slots": [_slot(engine, slot) for slot in engine.slots.all],
        "step": {
            "number": step.number,
            "n_prompt": step.n_prompt,
            "n_decoded": step.n_decoded,
            "n_drafted": step.n_drafted,
            "spent_ms": 1000 * step.spent_s,
            "parts": [part._asdict() for part in step.parts],
        },
        "totals": {
            "n_prompt": timings.n_prompt,
            "n_reused": timings.n_reused,
            "n_restored": timings.n_restored,
            "n_preempted": timings.n_preempted,
            "n_generated": timings.n_generated,
            "n_drafted": timings.n_drafted,
            "n_accepted": timings.n_accepted,
        },
        "caches": [_cache(cache.cells) for cache in engine.context.memory.caches],
    }


def _slot(engine: Engine, slot: Slot[RequestState]) -> dict[str, Any]:
    """`n_held` tokens are in the cache; those of a slot that is idle can be reused."""
    told: dict[str, Any] = {
        "id": slot.seq,
        "state": "idle",
        "n_held": engine.context.memory.seq_pos_max(slot.seq) + 1,
    }
    owner = slot.owner
    if owner is not None:
        n_prompt = len(owner.request.prompt)
        told["state"] = "decode" if owner.is_decoding else "prompt"
        told["n_prompt"] = n_prompt
        told["n_prompt_done"] = min(owner.n_past, n_prompt)
        told["n_reused"] = owner.n_reused
        told["n_decoded"] = owner.n_decoded
    return told


def _cache(cells: KVCells) -> dict[str, Any]:
    n_cells = cells.n_ctx * cells.n_stream
    return {
        "window": None if cells.window is None else cells.window.size,
        "n_cells": n_cells,
        "n_used": cells.n_used_in_all(),
        "n_each": -(-n_cells // _MOST_CELLS),
        "page_size": cells.page_size if isinstance(cells, PagedCells) else 1,
    }


def _members(engine: Engine) -> list[list[Flags]]:
    """Of each cache and stream: which sequences hold which cells."""
    caches = [cache.cells for cache in engine.context.memory.caches]
    return [[cells.members(stream) for stream in range(cells.n_stream)] for cells in caches]


def runs(held: Flags, n_cells: int, n_each: int) -> dict[str, list[Any]]:
    """The cells of a stream in runs that the same sequences hold: the i-th has `lengths[i]` groups
    of `n_each` cells, which belong to `holders[owners[i]]`, numbered within the stream.

    held [sequences, cells], of which there may be fewer than `n_cells`: the rest are empty. A group
    belongs to all who hold a cell of it.
    """
    members = np.zeros((len(held), n_cells), np.bool_)
    members[:, : held.shape[1]] = held
    if n_each > 1:
        members = np.logical_or.reduceat(members, np.arange(0, members.shape[1], n_each), axis=1)
    keys = np.packbits(members, axis=0)  # [bytes, groups]
    changes = np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1
    starts = np.concatenate([[0], changes])
    lengths = np.diff(starts, append=members.shape[1])
    holders: dict[bytes, int] = {}
    owners = [
        holders.setdefault(key.tobytes(), len(holders))
        for key in np.ascontiguousarray(keys[:, starts].T)
    ]
    listed = [
        np.flatnonzero(np.unpackbits(np.frombuffer(key, np.uint8))).tolist() for key in holders
    ]
    return {"holders": listed, "owners": owners, "lengths": lengths.tolist()}

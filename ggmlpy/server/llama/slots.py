"""GET /slots, and POST /slots/{id}?action=save, restore or erase."""

from __future__ import annotations

import re
from pathlib import Path
from time import perf_counter
from typing import Any

from ggmlpy.engine.request_state import RequestState
from ggmlpy.engine.slots import Slot
from ggmlpy.errors import FileError, MissingFile, StateError
from ggmlpy.llama import Llama
from ggmlpy.memory.llama_state import LlamaState
from ggmlpy.server.endpoint import Call
from ggmlpy.server.errors import ApiError, invalid
from ggmlpy.server.fields import needed, text
from ggmlpy.server.hosted import Hosted
from ggmlpy.server.llama.results import Asked, settings_of

_LONGEST_NAME = 200  # bytes: file systems take 255, and a file that is being written needs more
_NOT_IN_NAMES = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')


async def slots(call: Call) -> list[dict[str, Any]]:
    """What each sequence does. Raises ApiError, 503, if none is free and the query asks that."""
    if not call.settings.slots:
        raise ApiError(501, "/slots is off: serve without --no-slots")
    query = call.request.query_params
    async with call.models.using(query.get("model")) as hosted:
        llm = hosted.llm.llama

        def made() -> list[dict[str, Any]]:
            return [_described(llm, slot) for slot in llm.engine.slots.all]

        found = await hosted.llm.answers.do(made)
    if query.get("fail_on_no_slot") and all(each["is_processing"] for each in found):
        raise ApiError(503, "no slot is free", headers={"Retry-After": "1"})
    return found


def _described(llm: Llama, slot: Slot[RequestState]) -> dict[str, Any]:
    state = slot.owner
    made: dict[str, Any] = {
        "id": slot.seq,
        "n_ctx": llm.n_ctx_seq(),
        "speculative": llm.engine.is_drafting,
        "is_processing": state is not None,
        "n_held_tokens": len(slot.tokens),
    }
    if state is None:
        return made
    request, n_prompt = state.request, len(state.request.prompt)
    n_run = min(state.n_past, n_prompt)
    made |= {
        "id_task": state.id,
        "n_prompt_tokens": n_prompt,
        "n_prompt_tokens_processed": max(0, n_run - state.n_reused),
        "n_prompt_tokens_cache": state.n_reused,
        "params": settings_of(
            request.sampling, Asked(n_predict=request.max_tokens), request.stop, request.n_keep
        ),
        "next_token": [
            {
                "has_next_token": True,
                "n_remain": state.n_predict - state.n_decoded,
                "n_decoded": state.n_decoded,
            }
        ],
    }
    return made


async def change_slot(call: Call) -> dict[str, Any]:
    """Save, restore or erase what a sequence holds."""
    query = call.request.query_params
    given = call.request.path_params["id"]
    action = {"save": _save, "restore": _restore, "erase": _erase}.get(query.get("action", ""))
    if action is None:
        raise invalid("action", "action must be save, restore or erase")
    async with call.models.using(query.get("model") or call.body.get("model")) as hosted:
        n = len(hosted.llm.llama.engine.slots.all)
        if not (given.isdecimal() and given.isascii() and len(given) < 9 and int(given) < n):
            raise invalid("id_slot", f"there is no slot {given:.20}: slots are 0 to {n - 1}")
        return await action(call, hosted, int(given))


async def _save(call: Call, hosted: Hosted, seq: int) -> dict[str, Any]:
    name, path = _path(call)
    started = perf_counter()
    await _check_free(hosted, seq)
    try:
        state = await hosted.llm.save_state(path, seq=seq)
    except FileError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError):
            raise
        reason = cause.strerror or cause  # the path is nobody's business
        raise ApiError(500, f"{name} cannot be saved: {reason}", param="filename") from error
    size = await call.in_pool(lambda: path.stat().st_size)
    return {
        "id_slot": seq,
        "filename": name,
        "n_saved": state.n_tokens,
        "n_written": size,
        "timings": {"save_ms": 1000 * (perf_counter() - started)},
    }


async def _restore(call: Call, hosted: Hosted, seq: int) -> dict[str, Any]:
    name, path = _path(call)
    started = perf_counter()
    await _check_free(hosted, seq)
    try:
        state = await call.in_pool(lambda: LlamaState.read(path))
        await hosted.llm.load_state(state, seq=seq)
        size = await call.in_pool(lambda: path.stat().st_size)
    except (MissingFile, FileNotFoundError):
        raise invalid("filename", f"filename: there is no saved slot {name}") from None
    except StateError as error:
        raise invalid("filename", f"filename: {name} cannot be restored: {error}") from None
    return {
        "id_slot": seq,
        "filename": name,
        "n_restored": state.n_tokens,
        "n_read": size,
        "timings": {"restore_ms": 1000 * (perf_counter() - started)},
    }


async def _erase(call: Call, hosted: Hosted, seq: int) -> dict[str, Any]:
    slots = hosted.llm.llama.engine.slots

    def erase() -> int:
        slot = slots.all[seq]
        if slot.owner is not None:
            raise _busy(seq)
        n = len(slot.tokens)
        slots.evict(slot)
        return n

    return {"id_slot": seq, "n_erased": await hosted.llm.answers.do(erase)}


async def _check_free(hosted: Hosted, seq: int) -> None:
    slots = hosted.llm.llama.engine.slots
    if await hosted.llm.answers.do(lambda: slots.all[seq].owner is not None):
        raise _busy(seq)


def _busy(seq: int) -> ApiError:
    return ApiError(409, f"slot {seq} has a running request: try again when it has ended")


def _path(call: Call) -> tuple[str, Path]:
    """The name that a body has, and where its file is. Raises ApiError for a name that is none, or
    that leads elsewhere."""
    folder = call.settings.slot_save_path
    if folder is None:
        raise ApiError(501, "slots are not saved: serve with --slot-save-path FOLDER")
    name = needed(call.body, "filename", text)
    if _NOT_IN_NAMES.search(name) or name.startswith(".") or name != name.strip(" ."):
        raise invalid("filename", f'filename is "{name:.80}": it must be a plain name of a file')
    if not name or len(name.encode()) > _LONGEST_NAME:
        raise invalid("filename", f"filename must have from 1 to {_LONGEST_NAME} bytes")
    path = Path(folder) / name
    if path.is_symlink() or path.is_dir():
        raise invalid("filename", f"filename: {name} is not a saved slot")
    return name, path

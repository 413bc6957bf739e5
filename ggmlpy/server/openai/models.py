"""GET /v1/models, and llama-server's ways to load and unload them."""

from __future__ import annotations

from typing import Any

from ggmlpy.server.endpoint import Call
from ggmlpy.server.fields import needed, text
from ggmlpy.server.hosted import Hosted


async def models(call: Call) -> dict[str, Any]:
    """All models of the server, whether loaded or not."""
    return {"object": "list", "data": [_described(each) for each in call.models.all]}


async def model(call: Call) -> dict[str, Any]:
    """One of them."""
    return _described(call.models.find(call.request.path_params["name"]))


async def load(call: Call) -> dict[str, Any]:
    """Load a model; the answer comes when it is loaded."""
    await call.models.load(call.models.find(needed(call.body, "model", text)))
    return {"success": True}


async def unload(call: Call) -> dict[str, Any]:
    """Give a model's memory back."""
    await call.models.unload(call.models.find(needed(call.body, "model", text)))
    return {"success": True}


def _described(hosted: Hosted) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": hosted.name,
        "object": "model",
        "created": hosted.created,
        "owned_by": "ggmlpy",
        "aliases": list(hosted.names[1:]),
        "status": {"value": hosted.status.value},
    }
    if hosted.error:
        made["status"]["error"] = hosted.error
    if hosted.is_loaded:
        llm = hosted.llm.llama
        made["meta"] = {
            "n_vocab": llm.n_vocab(),
            "n_ctx": llm.n_ctx(),
            "n_ctx_seq": llm.n_ctx_seq(),
            "n_ctx_train": llm.model.hparams.n_ctx_train,
            "n_embd": llm.n_embd(),
            "n_seq_max": llm.engine.context.sizes.n_seq_max,
        }
    return made

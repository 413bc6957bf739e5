"""GET and POST /props."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import ggmlpy
from ggmlpy.errors import TemplateError
from ggmlpy.llama import Llama
from ggmlpy.sampling import SamplingParams
from ggmlpy.server.endpoint import Call
from ggmlpy.server.errors import ApiError
from ggmlpy.server.hosted import Hosted, Status
from ggmlpy.server.llama.results import Asked, settings_of
from ggmlpy.server.settings import Settings
from ggmlpy.text.tokenizer import Tokenizer

_PARAMS = {field.name for field in fields(SamplingParams)}


async def props(call: Call) -> dict[str, Any]:
    """What a server and its model are. A model that sleeps is not loaded for this."""
    hosted = call.models.find(call.request.query_params.get("model"))
    about = {
        "model_alias": hosted.name,
        "is_sleeping": hosted.status is Status.SLEEPING,
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": call.settings.slots,
        "endpoint_props": call.settings.props,
        "endpoint_metrics": call.settings.metrics,
        "ui": call.settings.page,
        "build_info": f"ggmlpy-{ggmlpy.__version__}",
    }
    if not hosted.is_loaded:
        if about["is_sleeping"]:
            return about
        raise _not_loaded(hosted)
    llm = hosted.llm.llama
    return about | await call.in_pool(lambda: _of_model(llm, call.settings))


def _not_loaded(hosted: Hosted) -> ApiError:
    if hosted.status is Status.LOADING:
        return ApiError(503, "Loading model", headers={"Retry-After": "1"})
    return ApiError(503, f"the model {hosted.name} is not loaded")


def _of_model(llm: Llama, settings: Settings) -> dict[str, Any]:
    given = {name: value for name, value in settings.defaults.items() if name in _PARAMS}
    asked = Asked(n_predict=settings.defaults.get("max_tokens") or -1)
    params = settings_of(SamplingParams(**given), asked)
    return {
        "default_generation_settings": {"params": params, "n_ctx": llm.n_ctx_seq()},
        "total_slots": llm.engine.context.sizes.n_seq_max,
        "model_path": llm.model_path,
        "chat_template": _template(llm),
        "bos_token": _text(llm.tokenizer, llm.tokenizer.bos_id),
        "eos_token": _text(llm.tokenizer, llm.tokenizer.eos_id),
    }


def _template(llm: Llama) -> str:
    try:
        return llm.chat_template.source
    except TemplateError:  # of a template that cannot be used
        return ""


def _text(tokenizer: Tokenizer, token: int | None) -> str:
    if token is None:
        return ""
    return tokenizer.token_bytes(token, special=True).decode(errors="replace")


async def change_props(call: Call) -> dict[str, Any]:
    """There is nothing that can be changed, as in llama-server."""
    if not call.settings.props:
        raise ApiError(501, "POST /props is off: serve with --props")
    return {"success": True}

"""GET and POST /lora-adapters: their scales, for requests that do not say otherwise."""

from __future__ import annotations

from typing import Any

from ggmlpy.server.endpoint import Call
from ggmlpy.server.errors import invalid
from ggmlpy.server.fields import integer, listed, mapping, needed, number

LIST = "adapters"  # under which a body, a list, is at hand


async def lora_adapters(call: Call) -> list[dict[str, Any]]:
    """All adapters that are loaded."""
    async with call.models.using(call.request.query_params.get("model")) as hosted:
        return [
            {"id": id, "path": str(adapter.path), "scale": adapter.scale}
            for id, adapter in hosted.llm.llama.lora_adapters.items()
        ]


async def change_lora_adapters(call: Call) -> dict[str, Any]:
    """Set scales; an adapter that is not named gets 0."""
    scales: dict[int, float] = {}
    for i, each in enumerate(listed(mapping)(LIST, call.body[LIST])):
        id = needed(each, "id", integer(0), f"[{i}]")
        if id in scales:
            raise invalid(f"[{i}].id", f"[{i}] names the adapter {id} again")
        scales[id] = needed(each, "scale", number(), f"[{i}]")
    async with call.models.using(call.request.query_params.get("model")) as hosted:
        adapters = hosted.llm.llama.lora_adapters
        unknown = scales.keys() - adapters.keys()
        if unknown:
            known = ", ".join(map(str, adapters)) or "none"
            raise invalid("id", f"no adapter {min(unknown)} is loaded; loaded are {known}")
        for id, adapter in adapters.items():
            adapter.scale = scales.get(id, 0.0)
    return {"success": True}

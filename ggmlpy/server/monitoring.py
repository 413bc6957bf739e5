"""GET /metrics."""

from __future__ import annotations

from starlette.responses import Response

from ggmlpy.server.endpoint import Call
from ggmlpy.server.errors import ApiError
from ggmlpy.server.hosted import Hosted
from ggmlpy.server.metrics import CONTENT_TYPE, Load


async def metrics(call: Call) -> Response:
    """The metrics of all models."""
    kept = call.service.metrics
    if kept is None:
        raise ApiError(501, "/metrics is off: serve with --metrics")
    loads = {}
    for each in call.models.all:
        if each.is_loaded:
            with call.models.watching(each):
                loads[each.name] = await _load_of(each)
    snapshot = kept.now(loads)
    return Response(await call.in_pool(lambda: kept.text(snapshot)), media_type=CONTENT_TYPE)


async def _load_of(hosted: Hosted) -> Load:
    llm, n_waiting = hosted.llm, hosted.gate.n_waiting
    return await llm.answers.do(lambda: Load.of(llm.llama, n_waiting))

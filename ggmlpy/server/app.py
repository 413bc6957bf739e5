"""The ASGI application of a server."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ggmlpy.errors import FileError, GgmlpyError
from ggmlpy.memory.state_file import remove_unfinished
from ggmlpy.server.anthropic.errors import as_anthropic
from ggmlpy.server.anthropic.messages import count_tokens, messages
from ggmlpy.server.endpoint import Call, Endpoint
from ggmlpy.server.errors import ApiError, as_openai
from ggmlpy.server.events import as_json
from ggmlpy.server.hosted import Models, Status
from ggmlpy.server.llama.completion import completion, infill
from ggmlpy.server.llama.embedding import embedding
from ggmlpy.server.llama.lora import LIST, change_lora_adapters, lora_adapters
from ggmlpy.server.llama.props import change_props, props
from ggmlpy.server.llama.slots import change_slot, slots
from ggmlpy.server.llama.tokens import apply_template, detokenize, tokenize
from ggmlpy.server.logs import id_headers, log_request, logger, request_id
from ggmlpy.server.metrics import Metrics
from ggmlpy.server.monitoring import metrics
from ggmlpy.server.openai.chat import chat_completions, chat_input_tokens
from ggmlpy.server.openai.completions import completions
from ggmlpy.server.openai.embeddings import embeddings
from ggmlpy.server.openai.models import load, model, models, unload
from ggmlpy.server.openai.responses import response_input_tokens, responses
from ggmlpy.server.openai.stored import input_items, stored_response
from ggmlpy.server.page.assets import asset, index
from ggmlpy.server.page.view import EngineViews
from ggmlpy.server.rerank import rerank
from ggmlpy.server.service import Service
from ggmlpy.server.settings import LOCALHOST, Settings
from ggmlpy.server.tracing import Traces

# What llama-server has without /v1 too.
_OPENAI = {
    "/chat/completions": chat_completions,
    "/chat/completions/input_tokens": chat_input_tokens,
    "/responses": responses,
    "/responses/input_tokens": response_input_tokens,
}
_RERANK = ("/v1/rerank", "/v1/reranking", "/v2/rerank", "/rerank", "/reranking")
_MANY_FAILED = 3  # steps in a row, after which an engine does not recover by itself
_LOCALHOST = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"


def create_app(
    models: Models,
    settings: Settings | None = None,
    *,
    read_settings: Callable[[], Settings] | None = None,
) -> Starlette:
    """The ASGI application that answers for some models. They are closed at its end.

    The first model is loaded when it starts, while /health says that it is. SIGHUP loads models
    anew, and takes the settings that `read_settings` reads then. Raises MissingPackage if there
    should be metrics or traces, and the package for them is not there.
    """
    settings = settings or Settings()
    kept = Metrics() if settings.metrics else None
    endpoint = settings.otlp_endpoint
    traces = None if endpoint is None else Traces.open(endpoint)
    service = Service(settings, models, read_settings, metrics=kept, traces=traces)
    app = Starlette(
        routes=_routes(),
        middleware=[_cors(service.settings)],
        exception_handlers={HTTPException: _refused},
        lifespan=_lifespan,
    )
    app.state.service = service
    return app


def _routes() -> list[Route]:
    def post(path: str, handler: Any, **more: Any) -> Route:
        return Route(path, Endpoint(handler, **more), methods=["POST"])

    def get(path: str, handler: Any, *, is_public: bool = False) -> Route:
        endpoint = Endpoint(handler, has_body=False, is_public=is_public)
        return Route(path, endpoint, methods=["GET"])

    return [
        *[post(base + path, each) for base in ("/v1", "") for path, each in _OPENAI.items()],
        post("/v1/messages", messages, error_form=as_anthropic),
        post("/v1/messages/count_tokens", count_tokens, error_form=as_anthropic),
        *_stored("/v1"),
        *_stored(""),
        post("/v1/completions", completions),
        post("/v1/embeddings", embeddings),
        post("/embedding", embedding),
        post("/embeddings", embedding),
        *[post(path, rerank) for path in _RERANK],
        get("/v1/models", models),
        get("/models", models),
        post("/models/load", load),
        post("/models/unload", unload),
        get("/v1/models/{name:path}", model),
        post("/completion", completion),
        post("/completions", completion),
        post("/infill", infill),
        post("/tokenize", tokenize),
        post("/detokenize", detokenize),
        post("/apply-template", apply_template),
        get("/props", props),
        post("/props", change_props, may_be_empty=True),
        get("/slots", slots),
        post("/slots/{id}", change_slot, may_be_empty=True),
        get("/lora-adapters", lora_adapters),
        post("/lora-adapters", change_lora_adapters, list_name=LIST),
        get("/", index, is_public=True),
        get("/page/{name}", asset, is_public=True),
        get("/engine", EngineViews().watch),
        get("/metrics", metrics),
        get("/health", health, is_public=True),
        get("/v1/health", health, is_public=True),
    ]


def _stored(base: str) -> list[Route]:
    """Of responses that are kept."""
    one, items = (Endpoint(each, has_body=False) for each in (stored_response, input_items))
    path = f"{base}/responses/{{id}}"
    return [
        Route(path, one, methods=["GET", "DELETE"]),
        Route(f"{path}/input_items", items, methods=["GET"]),
    ]


async def health(call: Call) -> dict[str, Any]:
    """Whether the server can answer. Raises ApiError, 503, while it cannot."""
    first = call.models.all[0]
    if first.status is Status.FAILED:
        raise ApiError(503, f"the model cannot be loaded: {first.error}")
    if first.status is Status.LOADING:
        raise ApiError(503, "Loading model", headers={"Retry-After": "1"})
    if first.is_loaded and first.llm.answers.n_failed_steps >= _MANY_FAILED:
        raise ApiError(503, "no step of the engine succeeds: the server's log says why")
    return {"status": "ok"}


def _cors(settings: Settings) -> Middleware:
    origins = settings.cors_origins
    return Middleware(
        CORSMiddleware,
        allow_origins=[each for each in origins if each != LOCALHOST],
        allow_origin_regex=_LOCALHOST if LOCALHOST in origins else None,
        allow_methods=["GET", "POST", "DELETE", "OPTIONS"],
        allow_headers=["*"],
    )


async def _refused(request: Request, error: Exception) -> Response:
    """Of paths and verbs that there are not."""
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code == 404:
        message = f"there is nothing at {request.url.path:.200}"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{request.method} is not for {request.url.path:.200}, which takes {allowed}"
    id = request_id(request.headers.get("x-request-id", ""))
    log_request(id, request.method, request.url.path, error.status_code, 0.0, [])
    headers = {**(error.headers or {}), **id_headers(id)}
    is_anthropics = re.match(r"/v1/messages(/|$)", request.url.path)
    form = as_anthropic if is_anthropics else as_openai
    refusal = ApiError(error.status_code, message, headers=headers)
    return Response(
        as_json(form(refusal, id)),
        status_code=refusal.status,
        headers=refusal.headers,
        media_type="application/json",
    )


@contextlib.asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    service: Service = app.state.service
    models = service.models
    await asyncio.to_thread(_remove_unfinished, service.settings.slot_save_path)
    tasks = [asyncio.ensure_future(models.load(models.all[0]))]
    if math.isfinite(models.sleep_idle_s):
        tasks.append(asyncio.ensure_future(models.sleep_when_idle()))
    with _reloading(service):
        try:
            yield
        finally:
            for task in tasks[1:]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await models.close()
            if service.traces is not None:
                await asyncio.to_thread(service.traces.close)
            service.pool.shutdown()


def _remove_unfinished(folder: str | None) -> None:
    """Remove what servers that were killed have left of slots that they saved."""
    if folder is None or not Path(folder).is_dir():
        return
    try:
        n = remove_unfinished(folder)
    except FileError as error:
        logger.warning("%s", error)
        return
    if n:
        logger.info("%d slots that were not saved whole are removed from %s", n, folder)


@contextlib.contextmanager
def _reloading(service: Service) -> Iterator[None]:
    """SIGHUP reloads, where the server runs in the main thread of a system that has the signal."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "SIGHUP"):
        yield
        return
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps none

    def reload() -> None:
        task = loop.create_task(_reload(service))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


async def _reload(service: Service) -> None:
    """Read settings and models anew. What cannot be used is told, and the server goes on."""
    try:
        if service.read_settings is not None:
            service.settings = service.read_settings()
        await service.models.reload()
        logger.info("reloaded")
    except (ApiError, GgmlpyError) as error:
        logger.error("not reloaded: %s", error)

"""Records what LangChain and LiteLLM send to a server.

    PYTHONPATH=. python tests/server/record_clients.py http://127.0.0.1:8080 stories

in an environment with langchain-openai, langchain-anthropic and litellm, while a server of the
packaged model runs: `ggmlpy serve --alias stories`. Writes clients.json: for each package its
version and its requests, each with the path, the headers that the API has, and the body.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ |= {
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "DISABLE_AIOHTTP_TRANSPORT": "True",
}

URL, MODEL = sys.argv[1], sys.argv[2]
HEADERS = ("anthropic-version", "anthropic-beta")
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Bonn", "Ulm"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
SCHEMA = {**PARAMETERS, "title": "place", "description": "A place."}
USER = [{"role": "user", "content": "How is it in Ulm?"}]

requests: list[dict[str, Any]] = []


def note(request: Any) -> None:
    """One request of a package."""
    made = {
        "path": request.url.path,
        "headers": {name: request.headers[name] for name in HEADERS if name in request.headers},
        "body": json.loads(request.content),
    }
    if made not in requests:
        requests.append(made)


@contextmanager
def noted() -> Iterator[None]:
    """Note what goes out in a block, whichever HTTP client sends it."""
    for name in ("httpx", "httpx2"):
        try:
            client = import_module(name).Client
        except ImportError:
            continue
        client.send = _noting(client.send)
    yield


def _noting(send: Callable[..., Any]) -> Callable[..., Any]:
    def noting(self: Any, request: Any, **options: Any) -> Any:
        note(request)
        return send(self, request, **options)

    return noting


def chat(model: Any) -> None:
    """What programs do with a chat model of LangChain."""
    messages = import_module("langchain_core.messages")
    model.invoke([("system", "Be short."), ("user", "Hello.")])
    for _ in model.stream("Hello."):
        pass
    with_tools = model.bind_tools([TOOL], tool_choice="weather")
    answer = with_tools.invoke("How is it in Ulm?")
    results = [messages.ToolMessage("rain", tool_call_id=c["id"]) for c in answer.tool_calls]
    assert results, "the model has called no tool"
    given = [messages.HumanMessage("How is it in Ulm?"), answer, *results]
    model.bind_tools([TOOL]).invoke(given)
    for _ in with_tools.stream(given):
        pass
    model.with_structured_output(SCHEMA).invoke("Where?")


def langchain_openai() -> None:
    package = import_module("langchain_openai")
    more = {"model": MODEL, "base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}
    for is_response in (False, True):
        options = {**more, "max_tokens": 150, "use_responses_api": is_response}
        chat(package.ChatOpenAI(**options, temperature=0.5))
        package.ChatOpenAI(**options, reasoning_effort="low").invoke("Hello.")
    package.OpenAI(**more, max_tokens=8).invoke("Once upon")
    package.OpenAIEmbeddings(**more, check_embedding_ctx_length=False).embed_documents(["a", "b"])


def langchain_anthropic() -> None:
    package = import_module("langchain_anthropic")
    more = {"model": MODEL, "base_url": URL, "api_key": "none", "max_retries": 0}
    model = package.ChatAnthropic(**more, max_tokens=150, temperature=0.5)
    chat(model)
    message = import_module("langchain_core.messages").HumanMessage("Hello.")
    model.get_num_tokens_from_messages([message])
    thinking = {"type": "enabled", "budget_tokens": 1024}
    package.ChatAnthropic(**more, max_tokens=2000, thinking=thinking).invoke("Hello.")


def litellm() -> None:
    package = import_module("litellm")
    for provider, base in (
        ("openai", f"{URL}/v1"),
        ("hosted_vllm", f"{URL}/v1"),
        ("anthropic", URL),
    ):
        more: dict[str, Any] = {"model": f"{provider}/{MODEL}", "api_base": base}
        more |= {"api_key": "none", "max_tokens": 150, "messages": USER, "max_retries": 0}
        package.completion(**more)
        package.completion(**more, tools=[TOOL], tool_choice="required")
        for _ in package.completion(**more, stream=True, stream_options={"include_usage": True}):
            pass
    more = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": "none"}
    package.responses(**more, input="Hello.", max_output_tokens=20)
    for _ in package.responses(**more, input="Hello.", max_output_tokens=20, stream=True):
        pass
    package.embedding(**more, input=["a", "b"])
    more["model"] = f"text-completion-openai/{MODEL}"
    package.text_completion(**more, prompt="Once upon", max_tokens=8)


def main() -> None:
    found = {}
    with noted():
        for run in (langchain_openai, langchain_anthropic, litellm):
            requests.clear()
            run()
            name = run.__name__.replace("_", "-")
            found[name] = {"version": version(name), "requests": list(requests)}
    text = json.dumps(found, separators=(",", ":")) + "\n"
    Path(__file__).with_name("clients.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""POST /v1/completions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.responses import Response

from ggmlpy.engine.completion import TextForm
from ggmlpy.engine.generation import Prompt, Request
from ggmlpy.llama import Llama
from ggmlpy.server.endpoint import Call
from ggmlpy.server.errors import invalid
from ggmlpy.server.fields import flag, integer, mapping, needed, read, text, wrong
from ggmlpy.server.generation import Choice, check_answers, start
from ggmlpy.server.llama.infill import check_infill, infill_tokens
from ggmlpy.server.openai.chat import MOST_CHOICES, wanted_in_chunks
from ggmlpy.server.openai.results import events, whole
from ggmlpy.server.options import read_options

_MOST_PROMPTS = 2048
_N_TOKENS = 16  # OpenAI's default of max_tokens
_CALL = {
    "n": integer(1, MOST_CHOICES),
    "best_of": integer(1, MOST_CHOICES),
    "echo": flag,
    "logprobs": integer(0, 20),
    "suffix": text,
    "stream": flag,
    "stream_options": mapping,
    "model": text,
}


async def completions(call: Call) -> Response | dict[str, Any]:
    """Continues texts, whole or as a stream of chunks."""
    asked = read(call.body, _CALL)
    prompts = needed(call.body, "prompt", read_prompts)
    n, best_of = asked.get("n", 1), asked.get("best_of", asked.get("n", 1))
    if best_of < n:
        raise invalid("best_of", f"best_of is {best_of}: it must be at least n, which is {n}")
    if best_of > n and asked.get("stream"):
        raise invalid("best_of", "best_of is more than n: the best cannot be known in a stream")
    check_answers("best_of" if best_of > n else "n", len(prompts), best_of)
    hosted = await call.stack.enter_async_context(call.models.using(asked.get("model")))
    llm = hosted.llm.llama
    if asked.get("suffix"):
        prompts = _filled(llm, prompts, asked["suffix"])
    options = {
        "max_tokens": _N_TOKENS,
        **read_options(call.body, call.settings.defaults, llm.tokenizer),
        "echo": asked.get("echo", False),
        "logprobs": asked.get("logprobs"),
        "model": hosted.name,
    }

    def make() -> list[tuple[Request, TextForm]]:
        made = [llm.prepare_completion(prompt, **options) for prompt in prompts]
        if best_of == n or "logprobs" in asked:
            return made
        return [(replace(request, n_top_logprobs=0), form) for request, form in made]

    generation = await start(call, hosted, make, best_of)
    if asked.get("stream"):
        return call.stream(events(generation, best_of, **wanted_in_chunks(call.body)))
    results, choices = await generation.whole(), generation.choices
    if best_of > n:
        results = [
            results[i]
            for start in range(0, len(results), best_of)
            for i in sorted(range(start, start + best_of), key=lambda i: _badness(choices[i]))[:n]
        ]
    if "logprobs" not in asked:
        for each in results:
            each["choices"][0]["logprobs"] = None
    return whole(generation, results, best_of)


def _filled(llm: Llama, prompts: list[Prompt], suffix: str) -> list[Prompt]:
    """Prompts whose answers go on with `suffix`. Raises ApiError."""
    check_infill(llm.tokenizer)
    filled: list[Prompt] = []
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise invalid("suffix", f"suffix needs texts, and prompt {i} is a list of token ids")
        filled.append(infill_tokens(llm.tokenizer, prompt, suffix, n_ctx_seq=llm.n_ctx_seq()))
    return filled


def read_prompts(name: str, value: Any) -> list[Prompt]:
    """A text, a list of texts, token ids, or a list of lists of them."""
    must = "a string, a list of strings, a list of token ids, or a list of such lists"
    if isinstance(value, str):
        return [text(name, value)]
    if not isinstance(value, list) or not value:
        raise wrong(name, value, must + ", and not empty")
    if len(value) > _MOST_PROMPTS and not isinstance(value[0], int):
        raise invalid(name, f"{name} has {len(value)} texts: there may be {_MOST_PROMPTS}")
    if all(_is_token(each) for each in value):
        return [value]
    prompts: list[Prompt] = []
    for i, each in enumerate(value):
        if isinstance(each, str):
            prompts.append(text(f"{name}[{i}]", each))
        elif isinstance(each, list) and each and all(_is_token(token) for token in each):
            prompts.append(each)
        else:
            raise wrong(f"{name}[{i}]", each, "a string, or a list of token ids")
    return prompts


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _badness(choice: Choice) -> float:
    """OpenAI's best choice has the highest mean of its tokens' log-probabilities."""
    return -sum(choice.logprobs) / len(choice.logprobs) if choice.logprobs else 0.0

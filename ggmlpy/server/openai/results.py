"""Results of one or several choices: whole, or as the events of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import ggmlpy
from ggmlpy.engine.generation import Progress
from ggmlpy.engine.timings import AnswerTimings
from ggmlpy.server.events import DONE, event
from ggmlpy.server.generation import Generation

_FINGERPRINT = f"ggmlpy-{ggmlpy.__version__}"
_SHARED = ("id", "object", "created", "model")  # of all chunks of a stream


def whole(
    generation: Generation, results: list[dict[str, Any]], n_each: int | None = None
) -> dict[str, Any]:
    """One result with the choices of all. `n_each` choices of a prompt ran, by default all."""
    made = {**results[0], "system_fingerprint": _FINGERPRINT}
    made["choices"] = [{**each["choices"][0], "index": i} for i, each in enumerate(results)]
    for choice in made["choices"]:
        if "message" in choice:
            choice["message"] = {**choice["message"], "refusal": None}  # a required field
    return made | _costs(generation, n_each)


async def events(
    generation: Generation,
    n_each: int | None = None,
    *,
    with_usage: bool,
    with_timings: bool = False,
) -> AsyncGenerator[bytes, None]:
    """The chunks of all choices, as they come; `with_timings` each has those until then, and
    `with_usage` a last one the tokens of all.

    As in OpenAI's API the chunk with a message's role has empty content, and those before the
    usage have the field with null.
    """
    shared: dict[str, Any] = {}  # what all chunks have
    async for arrived in generation.chunks():
        parts = []
        for index, chunk in arrived:
            if not shared:
                shared = {name: chunk[name] for name in _SHARED}
                shared["system_fingerprint"] = _FINGERPRINT
            choice = chunk["choices"][0]
            choice["index"] = index
            if "role" in choice.get("delta", ()):
                choice["delta"] = {**choice["delta"], "content": ""}
            chunk |= shared
            if with_usage:
                chunk["usage"] = None
            if "prompt_progress" in chunk:
                chunk["prompt_progress"] = progress_of(chunk["prompt_progress"])
            if with_timings or choice["finish_reason"] is not None:
                chunk["timings"] = timings_of(generation.choices[index].timings)
            parts.append(event(chunk))
        yield b"".join(parts)
    if with_usage:
        yield event({**shared, "choices": [], **_costs(generation, n_each)})
    yield DONE


def _costs(generation: Generation, n_each: int | None) -> dict[str, Any]:
    costs: dict[str, Any] = {"usage": usage_of(generation, n_each)}
    if len(generation.choices) == 1:
        costs["timings"] = timings_of(generation.choices[0].timings)
    return costs


def usage_of(generation: Generation, n_each: int | None = None) -> dict[str, Any]:
    """Tokens of all choices. A prompt counts once, however many choices it has: `n_each` of them
    follow each other, by default all."""
    timings = [choice.timings for choice in generation.choices]
    prompts = timings[:: n_each or len(timings)]
    n_prompt = sum(each.n_prompt for each in prompts)
    n_made = sum(each.n_decoded for each in timings)
    usage: dict[str, Any] = {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_made,
        "total_tokens": n_prompt + n_made,
        "prompt_tokens_details": {"cached_tokens": sum(each.n_reused for each in prompts)},
    }
    if any(each.n_drafted for each in timings):
        n_accepted = sum(each.n_accepted for each in timings)
        n_rejected = sum(each.n_drafted for each in timings) - n_accepted
        usage["completion_tokens_details"] = {
            "accepted_prediction_tokens": n_accepted,
            "rejected_prediction_tokens": n_rejected,
        }
    return usage


def timings_of(timings: AnswerTimings) -> dict[str, Any]:
    """llama-server's `timings`."""
    n_run = timings.n_prompt - timings.n_reused
    made: dict[str, Any] = {
        "cache_n": timings.n_reused,
        "prompt_n": n_run,
        **_rates("prompt", n_run, timings.prompt_s),
        "predicted_n": timings.n_decoded,
        **_rates("predicted", timings.n_decoded, timings.decode_s),
    }
    if timings.n_drafted:
        made["draft_n"] = timings.n_drafted
        made["draft_n_accepted"] = timings.n_accepted
    return made


def progress_of(progress: Progress) -> dict[str, int]:
    """llama-server's `prompt_progress`."""
    return {
        "total": progress.n_total,
        "cache": progress.n_reused,
        "processed": progress.n_held,
        "time_ms": int(1000 * progress.spent_s),
    }


def _rates(name: str, n: int, spent_s: float) -> dict[str, float]:
    ms = 1000 * spent_s
    return {
        f"{name}_ms": ms,
        f"{name}_per_token_ms": ms / n if n else 0.0,
        f"{name}_per_second": n / spent_s if spent_s else 0.0,
    }

"""POST /completion, /completions and /infill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from ggmlpy.engine.generation import Request
from ggmlpy.server.endpoint import Call
from ggmlpy.server.fields import either, flag, integer, listed, mapping, needed, number, read, text
from ggmlpy.server.generation import check_answers, seeded, start
from ggmlpy.server.hosted import Hosted
from ggmlpy.server.llama.infill import check_infill, infill_tokens, read_extra
from ggmlpy.server.llama.prompts import Encode, read_prompts
from ggmlpy.server.llama.results import Asked, CompletionForm, TimeLimit, events
from ggmlpy.server.openai.chat import MOST_CHOICES
from ggmlpy.server.options import read_options

_CALL = {
    "model": text,
    "stream": flag,
    "n_predict": integer(-1),
    "max_tokens": integer(-1),
    "n_cmpl": integer(1, MOST_CHOICES),
    "n": integer(1, MOST_CHOICES),
    "n_probs": integer(0),
    "logprobs": either(flag, integer(0), must="true, false, or an integer of at least 0"),
    "return_tokens": flag,
    "timings_per_token": flag,
    "t_max_predict_ms": number(),
    "response_fields": listed(text),
    "ignore_eos": flag,
    "grammar": text,
    "lora": listed(mapping),
    "post_sampling_probs": flag,
    "n_discard": integer(0),
}


async def completion(call: Call) -> Response | dict[str, Any] | list[Any]:
    """Continues a prompt or several."""
    prompts = needed(call.body, "prompt", read_prompts)
    asked = read(call.body, _CALL)
    hosted = await call.stack.enter_async_context(call.models.using(asked.get("model")))
    return await _complete(call, hosted, asked, prompts)


async def infill(call: Call) -> Response | dict[str, Any] | list[Any]:
    """Fills in what is between a prefix and a suffix."""
    body = call.body
    before = needed(body, "input_prefix", text)
    after = needed(body, "input_suffix", text)
    extra = read_extra(body)
    prompt = read(body, {"prompt": text}).get("prompt", "")
    asked = read(body, _CALL)
    hosted = await call.stack.enter_async_context(call.models.using(asked.get("model")))
    llm = hosted.llm.llama
    check_infill(llm.tokenizer)
    n_predict = asked.get("n_predict", asked.get("max_tokens", -1))

    def encode(_: Any) -> list[int]:
        return infill_tokens(
            llm.tokenizer,
            before,
            after,
            prompt=prompt,
            extra=extra,
            n_ctx_seq=llm.n_ctx_seq(),
            n_predict=n_predict,
        )

    return await _complete(call, hosted, asked, [encode])


async def _complete(
    call: Call,
    hosted: Hosted,
    asked: dict[str, Any],
    prompts: Sequence[Encode],
) -> Response | dict[str, Any] | list[Any]:
    llm = hosted.llm.llama
    tokenizer, n_ctx_seq = llm.tokenizer, llm.n_ctx_seq()
    n_probs = int(asked.get("n_probs", asked.get("logprobs", 0)))
    options = {
        "max_tokens": None,
        **read_options(call.body, call.settings.defaults, tokenizer),
        "logprobs": n_probs or None,
    }
    n_predict = -1 if options["max_tokens"] is None else options["max_tokens"]
    wanted = Asked(
        n_predict=n_predict,
        n_probs=n_probs,
        stream=asked.get("stream", False),
        return_tokens=asked.get("return_tokens", False),
        ignore_eos=asked.get("ignore_eos", False),
        timings_per_token=asked.get("timings_per_token", False),
        post_sampling_probs=asked.get("post_sampling_probs", False),
        n_discard=asked.get("n_discard", 0),
        grammar=asked.get("grammar", ""),
        response_fields=asked.get("response_fields", ()),
        lora=asked.get("lora", ()),
    )
    limit_ms = asked.get("t_max_predict_ms", 0)

    def made(encode: Encode) -> tuple[Request, CompletionForm]:
        tokens = encode(tokenizer)
        limit = TimeLimit(limit_ms, tokenizer, len(tokens)) if limit_ms > 0 else None
        request, _ = llm.prepare_completion(tokens, **options, stopping_criteria=limit)
        request = replace(request, scores_sampled=wanted.post_sampling_probs)
        return request, CompletionForm(request, wanted, hosted.name, tokenizer, n_ctx_seq, limit)

    n = asked.get("n_cmpl", asked.get("n", 1))
    check_answers("n_cmpl" if "n_cmpl" in asked else "n", len(prompts), n)

    def make() -> list[tuple[Request, CompletionForm]]:
        pairs: list[tuple[Request, CompletionForm]] = []
        for encode in prompts:
            for i in range(n):
                request, form = made(encode)
                form.index = len(pairs)
                pairs.append((seeded(request, i), form))
        return pairs

    generation = await start(call, hosted, make)
    if wanted.stream:
        return call.stream(events(generation))
    results = await generation.whole()
    return results if len(results) > 1 else results[0]

"""Times of llama.cpp's grammars: run by structured_output.py with the interpreter of
llama-cpp-python, and needs nothing else.

Reads a JSON object from stdin and writes one: {"model", "vocab", "schema", "text", "n_tokens",
"n_threads"} gives {"apply_us", "step_us", "step_with_grammar_us"}.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import statistics
import sys
from time import perf_counter
from typing import Any

N_REPEAT = 3


def apply_times(api: Any, vocab_path: str, grammar: bytes, text: str) -> list[float]:
    """us for each token of a text: limiting the candidates to what the grammar allows."""
    params = api.llama_model_default_params()
    params.vocab_only = True
    model = api.llama_model_load_from_file(vocab_path.encode(), params)
    vocab = api.llama_model_get_vocab(model)
    n_vocab = api.llama_vocab_n_tokens(vocab)
    buffer = (ctypes.c_int32 * 1000)()
    data = text.encode()
    n = api.llama_tokenize(vocab, data, len(data), buffer, 1000, False, False)
    sampler = api.llama_sampler_init_grammar(vocab, grammar, b"root")
    candidates = (api.llama_token_data * n_vocab)()
    times = []
    for token in buffer[:n]:
        for i in range(n_vocab):
            candidates[i].id, candidates[i].logit = i, 0.0
        array = api.llama_token_data_array(candidates, n_vocab, -1, False)
        started = perf_counter()
        api.llama_sampler_apply(sampler, ctypes.byref(array))
        api.llama_sampler_accept(sampler, token)
        times.append(1e6 * (perf_counter() - started))
    return times


def step_time(llm: Any, n_tokens: int, grammar: Any) -> float:
    """us a token of a completion."""
    times: list[float] = []
    for seed in range(N_REPEAT):
        started = perf_counter()
        result = llm.create_completion(
            "A boy:", max_tokens=n_tokens, grammar=grammar, seed=seed, stop=None
        )
        n = result["usage"]["completion_tokens"]
        times.append(1e6 * (perf_counter() - started) / max(1, n))
    return statistics.median(times)


def main() -> None:
    asked = json.load(sys.stdin)
    api = importlib.import_module("llama_cpp")
    schemas = importlib.import_module("llama_cpp.llama_grammar")
    text = schemas.json_schema_to_gbnf(json.dumps(asked["schema"]))
    found: dict[str, Any] = {}
    if asked["vocab"]:
        found["apply_us"] = apply_times(api, asked["vocab"], text.encode(), asked["text"])
    llm = api.Llama(asked["model"], n_ctx=512, n_threads=asked["n_threads"], verbose=False)
    grammar = api.LlamaGrammar.from_string(text, verbose=False)
    found["step_us"] = step_time(llm, asked["n_tokens"], None)
    found["step_with_grammar_us"] = step_time(llm, asked["n_tokens"], grammar)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

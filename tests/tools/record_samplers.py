"""Records what llama.cpp's samplers make of logits, which tests/unit compare with.

    PYTHONPATH=. ~/llama/bin/python -m tests.tools.record_samplers ggmlpy/data/stories.gguf

Run it with an interpreter that has llama-cpp-python, here 0.3.36. Writes
tests/unit/peer_samplers.json: of each step of a case the remaining tokens with their logits, the
largest 0, and the token that was drawn.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import llama_cpp as peer  # type: ignore[import-not-found,unused-ignore]
import numpy as np

from tests.unit.peer_samplers import (
    CASES,
    N_STEPS,
    OFF,
    RECORDED,
    TEXT_CASES,
    history_of,
    logits_of,
    text_logits,
)

N_VOCAB = 40
ORDER = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc"]
ORDER += ["temperature"]
DEFAULTS = {
    "repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "penalty_last_n": 64,
    "typical_p": 1.0, "min_keep": 0, "top_n_sigma": -1.0, "xtc_probability": 0.0,
    "xtc_threshold": 0.1, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "dry_multiplier": 0.0,
    "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ["\n", ":", '"', "*"], "mirostat_mode": 0, "mirostat_tau": 5.0,
    "mirostat_eta": 0.1, "adaptive_target": -1.0, "adaptive_decay": 0.9, "samplers": ORDER, **OFF,
}  # fmt: skip


def made(name: str, p: dict[str, Any], vocab: Any, n_vocab: int) -> Any:
    keep = max(p["min_keep"], 1)
    match name:
        case "penalties":
            return peer.llama_sampler_init_penalties(
                n_vocab, p["penalty_last_n"], p["repeat_penalty"], p["frequency_penalty"],
                p["presence_penalty"],
            )  # fmt: skip
        case "dry":
            texts = [text.encode() for text in p["dry_sequence_breakers"]]
            return peer.llama_sampler_init_dry(
                vocab, p["dry_multiplier"], p["dry_base"], p["dry_allowed_length"],
                p["dry_penalty_last_n"], (ctypes.c_char_p * len(texts))(*texts), len(texts),
            )  # fmt: skip
        case "top_n_sigma":
            return peer.llama_sampler_init_top_n_sigma(p["top_n_sigma"])
        case "top_k":
            return peer.llama_sampler_init_top_k(p["top_k"])
        case "typ_p":
            return peer.llama_sampler_init_typical(p["typical_p"], keep)
        case "top_p":
            return peer.llama_sampler_init_top_p(p["top_p"], keep)
        case "min_p":
            return peer.llama_sampler_init_min_p(p["min_p"], keep)
        case "xtc":
            return peer.llama_sampler_init_xtc(p["xtc_probability"], p["xtc_threshold"], keep, 1)
        case "temperature":
            return peer.llama_sampler_init_temp_ext(
                p["temperature"], p["dynatemp_range"], p["dynatemp_exponent"]
            )
        case "infill":
            return peer.llama_sampler_init_infill(vocab)
    raise KeyError(name)


def chain_of(p: dict[str, Any], vocab: Any, n_vocab: int) -> Any:
    """As llama.cpp's common_sampler_init."""
    chain = peer.llama_sampler_chain_init(peer.llama_sampler_chain_default_params())
    steps = []
    if p["mirostat_mode"] == 0:
        steps += [made(name, p, vocab, n_vocab) for name in p["samplers"] if name != "adaptive_p"]
        if "adaptive_p" in p["samplers"]:
            target, decay = p["adaptive_target"], p["adaptive_decay"]
            steps.append(peer.llama_sampler_init_adaptive_p(target, decay, 1))
    else:
        steps.append(peer.llama_sampler_init_temp(p["temperature"]))
        tau, eta = p["mirostat_tau"], p["mirostat_eta"]
        if p["mirostat_mode"] == 1:
            steps.append(peer.llama_sampler_init_mirostat(n_vocab, 1, tau, eta, 100))
        else:
            steps.append(peer.llama_sampler_init_mirostat_v2(1, tau, eta))
    for step in steps:
        peer.llama_sampler_chain_add(chain, step)
    return chain


def applied(chain: Any, logits: Any) -> tuple[dict[int, float], int | None]:
    """The remaining tokens with their logits, and the one that was drawn, if one was."""
    data = (peer.llama_token_data * len(logits))()
    for i, logit in enumerate(logits.tolist()):
        data[i].id, data[i].logit = i, logit
    array = peer.llama_token_data_array(data=data, size=len(logits), selected=-1, sorted=False)
    peer.llama_sampler_apply(chain, ctypes.byref(array))
    left = [array.data[i] for i in range(array.size)]
    tokens = {t.id: float(t.logit) for t in left if t.logit != -np.inf}
    largest = max(tokens.values())
    relative = {token: round(logit - largest, 6) for token, logit in tokens.items()}
    return relative, left[array.selected].id if array.selected >= 0 else None


def recorded(name: str, params: dict[str, Any], model: Any, vocab: Any) -> list[Any]:
    params = dict(params)
    text = params.pop("text", None)
    n_vocab = N_VOCAB if text is None else peer.llama_vocab_n_tokens(vocab)
    history = history_of(name, n_vocab) if text is None else tokens_of(vocab, text)
    chain = chain_of({**DEFAULTS, **params}, vocab, n_vocab)
    near = near_tokens(vocab) if text is not None else []
    for token in history:
        peer.llama_sampler_accept(chain, token)
    steps = []
    for i in range(N_STEPS):
        if text is None:
            logits = logits_of(name, i, n_vocab)
        else:
            logits = text_logits(name, i, n_vocab, near)
        left, drawn = applied(chain, logits)
        token = next(iter(left)) if drawn is None else drawn
        if len(left) > 60:  # of a whole vocabulary, which is a change of a few
            left = {t: x for t, x in left.items() if t in set(history) or x == 0}
        peer.llama_sampler_accept(chain, token)
        steps.append([{str(t): x for t, x in left.items()}, token])
        history = [*history, token]
    return steps


def tokens_of(vocab: Any, text: str) -> list[int]:
    raw = text.encode()
    out = (peer.llama_token * len(raw))()
    n = peer.llama_tokenize(vocab, raw, len(raw), out, len(raw), False, False)
    return list(out[:n])


def near_tokens(vocab: Any) -> list[int]:
    """Tokens of a space and letters: many begin others."""
    texts = (peer.llama_vocab_get_text(vocab, i) for i in range(peer.llama_vocab_n_tokens(vocab)))
    return [i for i, text in enumerate(texts) if text.decode().startswith("Ġwa")]


def main(path: str) -> None:
    params = peer.llama_model_default_params()
    params.vocab_only = True
    model = peer.llama_model_load_from_file(path.encode(), params)
    vocab = peer.llama_model_get_vocab(model)
    found = {
        name: recorded(name, case, model, vocab) for name, case in (CASES | TEXT_CASES).items()
    }
    lines = [f"{json.dumps(name)}: {json.dumps(steps)}" for name, steps in found.items()]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

"""Chains whose results in llama.cpp are recorded: tests/tools/record_samplers.py.

The recorder runs with llama-cpp-python and without ggmlpy: nothing of it is imported here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORDED = Path(__file__).with_name("peer_samplers.json")
OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
N_STEPS = 6  # of each case, each after the token that the one before gave


def logits_of(case: str, step: int, n: int) -> NDArray[np.float32]:
    """The same on every machine, and no two alike."""
    rng = np.random.default_rng([*case.encode(), step])
    values = rng.integers(-64, 64, n) / 16 + rng.permutation(n) / (16 * n)
    return values.astype(np.float32)


def history_of(case: str, n_vocab: int) -> list[int]:
    """Tokens with repetitions of up to a dozen, and among them sequence breakers."""
    rng = np.random.default_rng([*case.encode(), 99])
    few = rng.permutation(n_vocab)[:4].tolist()
    tokens = [few[i] for i in rng.integers(0, len(few), 30).tolist()]
    return tokens + tokens[3:15]


DRY: dict[str, Any] = {"dry_multiplier": 0.8, "dry_sequence_breakers": []}
CASES: dict[str, dict[str, Any]] = {
    "top_n_sigma": {"top_n_sigma": 1.0},
    "top_n_sigma of few": {"samplers": ["top_k", "top_n_sigma"], "top_k": 20, "top_n_sigma": 0.7},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.05},
    "xtc of few": {"xtc_probability": 1.0, "xtc_threshold": 0.1, "top_k": 8},
    "xtc that leaves too few": {
        "xtc_probability": 1.0, "xtc_threshold": 0.1, "top_k": 6, "min_keep": 5,
    },
    "dynatemp": {"temperature": 0.9, "dynatemp_range": 0.7, "dynatemp_exponent": 1.4},
    "dynatemp from 0": {"temperature": 0.3, "dynatemp_range": 0.5, "top_k": 12},
    "dynatemp of one": {"temperature": 0.3, "dynatemp_range": 0.5, "top_k": 1},
    "mirostat 1": {"mirostat_mode": 1, "mirostat_tau": 2.5, "mirostat_eta": 0.3},
    "mirostat 1, cold": {"mirostat_mode": 1, "mirostat_tau": 1.0, "temperature": 0.5},
    "mirostat 2": {"mirostat_mode": 2, "mirostat_tau": 2.5, "mirostat_eta": 0.3},
    "mirostat 2, far": {"mirostat_mode": 2, "mirostat_tau": 0.1, "mirostat_eta": 1.0},
    "adaptive_p": {"samplers": ["top_k", "adaptive_p"], "top_k": 20, "adaptive_target": 0.3},
    "adaptive_p before others": {
        "samplers": ["adaptive_p", "min_p"], "min_p": 0.1, "adaptive_target": 0.7,
        "adaptive_decay": 0.5,
    },
    "typical": {"typical_p": 0.6},
    "dry": DRY,
    "dry of all": {**DRY, "dry_allowed_length": 1, "dry_penalty_last_n": 1000, "dry_base": 1.1},
    "dry of few": {**DRY, "dry_penalty_last_n": 20, "dry_allowed_length": 3},
    "dry, base 1": {**DRY, "dry_base": 1.0},
    "dry, allowed 0": {**DRY, "dry_allowed_length": 0},
    "dry behind a cut": {**DRY, "samplers": ["top_k", "dry", "min_p"], "top_k": 9, "min_p": 0.2},
    "penalties behind a cut": {
        "samplers": ["top_k", "temperature", "penalties"], "top_k": 9, "temperature": 0.7,
        "repeat_penalty": 1.7, "frequency_penalty": 0.2, "presence_penalty": 0.1,
    },
    "dry and penalties": {**DRY, "repeat_penalty": 1.3, "penalty_last_n": 30, "top_k": 15},
    "everything": {
        # Not typ_p: behind top_n_sigma its entropy is NaN in llama.cpp, of 0 * log(0).
        **DRY, "repeat_penalty": 1.3, "top_n_sigma": 1.5, "top_k": 20, "top_p": 0.9,
        "min_p": 0.05, "xtc_probability": 1.0, "xtc_threshold": 0.2,
        "temperature": 0.8, "dynatemp_range": 0.3,
    },
    "another order": {
        "samplers": ["temperature", "xtc", "min_p", "top_p", "typ_p", "top_k"], "top_k": 7,
        "typical_p": 0.9, "top_p": 0.9, "min_p": 0.05, "xtc_probability": 1.0, "temperature": 0.6,
    },
}  # fmt: skip

# With the vocabulary of the packaged model. Here tokens are texts.
TEXT_CASES: dict[str, dict[str, Any]] = {
    "line breaks": {
        "text": "a cat sat here.\nthe cat sat here.\nthe cat sat", "dry_multiplier": 1.0,
    },
    "inside a token": {
        "text": "one big dog, one big dog, one big", "dry_multiplier": 1.0, "dry_base": 1.2,
        "dry_sequence_breakers": ["ig"],
    },
    "two tokens": {
        "text": "he said stop! he ran. he said stop! he ran. he said stop!", "dry_multiplier": 1.0,
        "dry_sequence_breakers": ["p!"], "dry_allowed_length": 1,
    },
    "none": {
        "text": "a cat sat here.\nthe cat sat here.\nthe cat sat", "dry_multiplier": 1.0,
        "dry_sequence_breakers": [],
    },
    "infill of text": {"samplers": ["top_k", "infill"], "top_k": 20, "text": "a"},
    "infill of few": {"samplers": ["top_k", "infill"], "top_k": 4, "text": "a"},
    "infill of more": {"samplers": ["temperature", "infill"], "temperature": 0.15, "text": "a"},
}  # fmt: skip


def text_logits(case: str, step: int, n: int, near: list[int]) -> NDArray[np.float32]:
    """As `logits_of`; of infill, with tokens that begin alike on top."""
    logits = logits_of(case, step, n)
    if case.startswith("infill"):
        rng = np.random.default_rng([*case.encode(), step, 7])
        chosen = rng.permutation(near)[:12]
        logits[chosen] += np.float32(5) + np.arange(len(chosen), dtype=np.float32) / 3
        logits[1] = np.float32(2 * step)  # EOS
    return logits

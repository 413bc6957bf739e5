"""ggmlpy's logits of a model, in a process of its own.

    python -m benchmarks.our_logits MODEL RECORDING OUT

Runs the tokens of llama.cpp's recording (benchmarks/peer_logits.py) in the same batches, with K and
V in f32, twice: `fused` with flash attention and `plain` without. Writes both to OUT, an .npz file.
One line on stdout is JSON: `warnings`, those of loading, and `refused`, an error of ggmlpy.errors.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.peer_logits import N_CTX, N_PROMPT, N_UBATCH, Recording
from ggmlpy.errors import GgmlpyError
from ggmlpy.runtime.context import Context

N_THREADS = 2


def logits_of(model: Path, recording: Recording, flash_attn: bool) -> NDArray[np.float32]:
    """Of every token of the recording, in numpy's order: [n_tokens, n_vocab]; or the embeddings
    that are recorded of an encoder, [n_tokens, n_embd]."""
    context = Context.open(
        model,
        backend="cpu",
        n_threads=N_THREADS,
        n_ctx=N_CTX,
        n_ubatch=N_UBATCH,
        type_k="f32",
        type_v="f32",
        flash_attn=flash_attn,
        embeddings=recording.kind == "embeddings",
    )
    if context.encoder is not None:
        context.encode(recording.tokens[:N_PROMPT].tolist())
    batches = _batches(recording)
    return np.concatenate([context.decode(each, all_logits=True).copy() for each in batches])


def _batches(recording: Recording) -> Iterator[list[int]]:
    """The prompt, then a token at a time; only the prompt of a model without memory."""
    tokens = recording.tokens.tolist()
    yield tokens[:N_PROMPT]
    if recording.has_memory:
        yield from ([token] for token in tokens[N_PROMPT:])


def main() -> None:
    model, recorded, out = map(Path, sys.argv[1:])
    recording = Recording.load(recorded)
    refused: str | None = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fused, plain = (logits_of(model, recording, each) for each in (True, False))
            np.savez(out, fused=fused, plain=plain)
        except GgmlpyError as error:
            refused = f"{type(error).__name__}: {error}"
    said = list(dict.fromkeys(str(each.message) for each in caught))
    print(json.dumps({"refused": refused, "warnings": said}))


if __name__ == "__main__":
    main()

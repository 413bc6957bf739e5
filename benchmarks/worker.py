"""An engine in a process of its own, which answers requests of a benchmark.

    -> {"do": "decode", "with": {"n_seqs": 8, "n_steps": 16}}          a line on stdin
    <- {"value": [0.051, …], "cpu_s": [1.52, 2.94]}                    a line on stdout
    <- {"error": "…", "cpu_s": […]}                                    where it failed

The answer is sent when the engine's threads sleep. `cpu_s` is the CPU time of the process before
the call and at the answer; what the process uses until the next call disturbs the measurement of
other engines.

This file needs only the standard library, because the other engine's interpreter runs it too.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, Protocol, TextIO

N_BATCH = 2048
N_UBATCH = 512

# Before an answer: idle threads spin for some milliseconds before they sleep (llama.cpp's OpenMP
# for 8, ggmlpy's for 0.2), and would do so while the other engine is measured.
SETTLE_S = 0.05


class Engine(Protocol):
    """What is measured. Times are seconds; what makes tokens and batches is not part of them."""

    def about(self) -> dict[str, str]:
        """Name, version, and how it was built."""

    def load(self, path: str, n_threads: int) -> float:
        """Open a model, weights and vocabulary; the time that took."""

    def first_token(self, path: str, n_threads: int, n_ctx: int) -> float:
        """Open a model and a context for one sequence, and run a token, in a process that has only
        imported its modules. Returns the seconds that this took."""

    def open(self, n_ctx: int, n_seq_max: int, layout: str, type_k: str, type_v: str) -> float:
        """Replace the context by one for `n_seq_max` sequences, with this layout of the cache.

        Returns the seconds taken.
        """

    def prepare(self, depths: list[int]) -> None:
        """Run a prompt in this context, and keep the contents of the cache at these lengths.

        `decode` at these depths starts from them, until the next context is opened.
        """

    def prompt(self, n_tokens: int) -> float:
        """Run a prompt in an empty cache, for the last token's logits."""

    def decode(
        self, n_seqs: int, n_steps: int, depth: int, n_warm: int, interleaved: bool
    ) -> list[float]:
        """Seconds of each step of sequences that hold `depth` tokens, in an otherwise empty cache.

        A step decodes one more token of every sequence. `n_warm` steps before are not timed.
        `interleaved` alternates the tokens of all sequences in one stream, as after decoding them
        together; otherwise the tokens of a sequence are contiguous.
        """

    def logits(self) -> str:
        """Of the last token of the prompt that was run last: f32 in hexadecimal digits."""

    def resident_bytes(self) -> dict[str, int]:
        """The peak resident memory of the process, and the parts of it that the engine reports."""


def random_tokens(n_vocab: int, n_rows: int, n: int) -> list[list[int]]:
    """`n_rows` lists of `n` tokens: the same ones every time, in every engine."""
    rng = random.Random(0)
    return [[rng.randrange(n_vocab) for _ in range(n)] for _ in range(n_rows)]


def peak_bytes() -> int:
    """The most memory that this process had resident, mapped files with it; 0 where unknown.

    Linux's own count since the program was started: what getrusage tells may be its parent's.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(s.split()[1]) for s in lines if s.startswith("VmHWM:")), 0)


def serve(make_engine: type[Engine]) -> None:
    """Answer requests until there are no more. The first answer, unasked, is the engine's `about`.

    Whatever libraries print goes to stderr: stdout is for answers.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        engine = make_engine()
        value: Any = engine.about()
    except Exception as error:
        _answer(answers, time.process_time(), error=error)
        return
    _answer(answers, time.process_time(), value)
    for line in sys.stdin:
        began = time.process_time()
        try:
            request = json.loads(line)
            value = getattr(engine, request["do"])(**request["with"])
        except Exception as error:
            _answer(answers, began, error=error)
        else:
            _answer(answers, began, value)


def _answer(
    answers: TextIO, began_s: float, value: Any = None, error: Exception | None = None
) -> None:
    said = {"value": value} if error is None else {"error": f"{type(error).__name__}: {error}"}
    time.sleep(SETTLE_S)
    answers.write(json.dumps({**said, "cpu_s": [began_s, time.process_time()]}) + "\n")
    answers.flush()

"""llama.cpp's server answering requests as they arrive, over HTTP on the loopback interface.

with LlamaServer(program, setup) as server:
    times = server.serve(requests, "llama-server")

Requests go to its own endpoint, /completion, with token ids as the prompt. Answers are greedy and
of exactly the length that is asked for. The client needs some of the machine too: a thread for each
request that is under way, which is asleep between tokens.
"""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.arrivals import Arrival
from benchmarks.engines import EngineError
from benchmarks.report import REDRAW_S, progress
from benchmarks.server_process import HOST, ServerProcess, free_port
from benchmarks.serving import Setup

NAME = "llama-server"
STALLED_S = 600.0  # without a token of a request


class LlamaServer(ServerProcess):
    """The program as a process, with a slot for each sequence. It ends with the `with` block."""

    def __init__(self, program: str, setup: Setup) -> None:
        """Start it, and wait until the model is loaded. Raises EngineError."""
        port = free_port()
        super().__init__(NAME, command(program, setup, port), port, setup.model.name)

    # --- requests ---

    def serve(self, requests: Sequence[Arrival], what: str) -> list[list[float]]:
        """Send each request when it arrives. Returns when the tokens of each came, in seconds from
        the start. Raises EngineError."""
        times: list[list[float]] = [[] for _ in requests]
        n_shown = 0

        def show() -> None:
            nonlocal n_shown
            n_tokens = sum(map(len, times))
            advance(n_tokens - n_shown)
            n_shown = n_tokens

        with (
            progress(what, sum(request.n_predict for request in requests)) as advance,
            ThreadPoolExecutor(len(requests), "request") as pool,
        ):
            try:
                started = perf_counter()
                sent = []
                for request, mine in zip(requests, times, strict=True):
                    time.sleep(max(0.0, started + request.at_s - perf_counter()))
                    sent.append(pool.submit(self._answer, request, started, mine))
                    show()
                while wait(sent, timeout=REDRAW_S).not_done:
                    show()
                for future in sent:
                    future.result()
            except BaseException as error:
                died = isinstance(error, EngineError) and self.has_ended()
                self.kill()  # ends the answers that the pool's threads wait for
                raise self.death() if died else error from None
        return times

    def _answer(self, request: Arrival, started: float, times: list[float]) -> None:
        """Send a request, and note when its tokens come."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=STALLED_S)
        try:
            body = json.dumps(as_json(request))
            connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise EngineError(f"{NAME}: {response.status}: {response.read().decode()[:200]}")
            for line in response:
                note_tokens(line, perf_counter() - started, times)
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"{NAME}: an answer broke off: {error!r}") from None
        finally:
            connection.close()
        if len(times) != request.n_predict:
            raise EngineError(f"{NAME} answered {len(times)} tokens, not {request.n_predict}")


def note_tokens(line: bytes, now: float, times: list[float]) -> None:
    """Add `now` for each token that a line of the stream tells of for the first time.

    An event tells how many tokens there are so far: one may stand for several, because a token that
    ends within a character waits for the next one.
    """
    kind, _, text = line.partition(b": ")
    if kind == b"error":
        raise EngineError(f"{NAME}: {text.decode().strip()[:200]}")
    if kind == b"data":
        n_tokens = json.loads(text)["tokens_predicted"]
        times.extend([now] * (n_tokens - len(times)))


def as_json(request: Arrival) -> dict[str, Any]:
    """The body of a request."""
    return {
        "prompt": list(request.prompt),
        "n_predict": request.n_predict,
        "temperature": 0,
        "top_k": 1,  # the other samplers then have one candidate only
        "ignore_eos": True,
        "cache_prompt": False,
        "stream": True,
    }


def command(program: str, setup: Setup, port: int) -> list[str]:
    """How the server is started: a stream of its own for each sequence, and no copies of prompts
    in memory, which no request here could use."""
    options = {
        "--model": setup.model.resolve(),
        "--host": HOST,
        "--port": port,
        "--parallel": setup.n_seqs,
        "--ctx-size": setup.n_ctx,
        "--threads": setup.n_threads,
        "--threads-batch": setup.n_threads,
        "--threads-http": 2 * setup.n_seqs + 2,
        "--cache-ram": 0,
    }
    found = shutil.which(program)
    return [
        str(Path(found).absolute()) if found else program,
        *(str(part) for option in options.items() for part in option),
        "--no-kv-unified",
        "--no-webui",
    ]


def version(program: str) -> str:
    """What the program says of itself, in its first line."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise EngineError(f"{NAME}: cannot run {program}: {error.strerror}") from None
    said = (done.stdout + done.stderr).splitlines()
    return next((line.removeprefix("version: ") for line in said if "version" in line), "unknown")

"""Random histories of the engine: each answer is the one that its prompt gets alone.

Requests come and go, share beginnings, make room for one another, are saved and loaded meanwhile.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ggmlpy import BadBatch, CacheFull, GgmlpyError, Llama, LlamaState
from ggmlpy.engine.generation import Piece
from tests.fuzz.case import Kind, Limits, Recipe, Wrong
from tests.fuzz.kernels import load_kernels
from tests.fuzz.models import with_convolutions, with_windows
from tests.models.tiny import Tiny, write_model

_SMALL = Tiny(n_layer=2, n_embd=64, n_head=2, n_head_kv=1, n_ff=64, n_ctx=256)
_WINDOW = with_windows(_SMALL)
_STEPS = with_convolutions(_SMALL)
_CHUNKS = {"token_budget": 5}  # prompts run in short chunks beside decode steps
_SETUPS: dict[str, tuple[Tiny, dict[str, Any]]] = {
    "split": (_SMALL, {"n_seq_max": 3, "n_ctx": 96, "n_ubatch": 8} | _CHUNKS),
    "one": (_SMALL, {"n_ctx": 40}),
    "unified": (
        _SMALL,
        {"n_seq_max": 4, "n_ctx": 64, "n_ubatch": 16, "kv_unified": True} | _CHUNKS,
    ),
    "q8_0": (_SMALL, {"n_seq_max": 2, "n_ctx": 64, "type_k": "q8_0", "type_v": "q4_0"}),
    "unfused": (_SMALL, {"n_seq_max": 2, "n_ctx": 64, "flash_attn": False}),
    "threads": (_SMALL, {"n_seq_max": 3, "n_ctx": 96, "n_ubatch": 8, "n_threads": 2}),
    "window": (_WINDOW, {"n_seq_max": 3, "n_ctx": 96, "n_ubatch": 8}),
    "unified window": (_WINDOW, {"n_seq_max": 3, "n_ctx": 48, "n_ubatch": 8, "kv_unified": True}),
    "paged": (
        _SMALL,
        {"n_seq_max": 4, "n_ctx": 72, "n_ubatch": 16, "kv_layout": "paged"} | _CHUNKS,
    ),
    "paged window": (_WINDOW, {"n_seq_max": 3, "n_ctx": 48, "n_ubatch": 8, "kv_layout": "paged"}),
    "recurrent": (_STEPS, {"n_seq_max": 3, "n_ctx": 96, "n_ubatch": 8}),
}
_MOST_STEPS = 3000  # in which all that is asked for here must be done
_TIE = 1e-3  # by which the likeliest token must be ahead for a rounding to leave it there


class Histories(Kind):
    """Up to 25 steps, and then all that is left."""

    name = "histories"
    about = "requests side by side, cancelled, preempted, saved: each text is the one it gets alone"
    n_quick = 150
    share = 2.0
    group = 4
    limits = Limits(cpu_s=20)
    parts = ("steps",)
    _paths: dict[str, Path]
    _llms: dict[str, tuple[Llama, Llama]]

    def prepare(self, folder: Path) -> None:
        load_kernels()
        self._paths, self._llms = {}, {}
        for name, (weights, options) in _SETUPS.items():
            self._paths[name] = write_model(folder / f"{name}.gguf", weights)
            if "n_threads" not in options:  # threads are not there in a forked process
                self._llms[name] = self._loaded(name)

    def _loaded(self, name: str) -> tuple[Llama, Llama]:
        """The model, and one that runs a request alone."""
        options = {"backend": "cpu", "n_threads": 1, **_SETUPS[name][1]}
        llm = Llama(self._paths[name], **options)
        single = options | {"n_seq_max": 1, "n_ctx": llm.n_ctx_seq()}
        single |= {"kv_unified": False, "kv_layout": None}
        single |= {"n_threads": 1, "n_ubatch": 64}
        return llm, Llama(self._paths[name], **single)

    def draw(self, rng: random.Random) -> Recipe:
        beginnings = [[rng.randrange(3, 288) for _ in range(40)] for _ in range(2)]
        setup = rng.choice(list(_SETUPS))
        greedy = bool(_SETUPS[setup][1].get("kv_unified"))
        shifts = _SETUPS[setup][0] is _SMALL
        steps = [_step(rng, beginnings, greedy, shifts) for _ in range(rng.choice((3, 8, 15, 25)))]
        return {"setup": setup, "steps": steps}

    def run(self, recipe: Recipe, folder: Path) -> None:
        name = recipe["setup"]
        llm, alone = self._llms.get(name) or self._loaded(name)
        llm.reset()
        history = _History(llm)
        for step in recipe["steps"]:
            history.do(*step)
        history.finish()
        unified = bool(_SETUPS[name][1].get("kv_unified"))
        for id, request in history.requests.items():
            if id not in history.ended_early:
                _check(history.pieces[id], request, alone, unified)

    def simpler(self, recipe: Recipe) -> Iterator[Recipe]:
        yield recipe | {"setup": "split"}
        yield recipe | {"setup": "one"}


def _step(rng: random.Random, beginnings: list[list[int]], greedy: bool, shifts: bool) -> list[Any]:
    what = rng.choices(
        ("add", "step", "cancel", "call", "save", "load", "reset", "long"),
        (40, 30, 6, 8, 6, 6, 1, 3),
    )[0]
    if what in ("add", "call"):
        return [what, _prompt(rng, beginnings), _options(rng, greedy, shifts)]
    if what == "long":
        return ["add", [5] * rng.choice((100, 1000)), _options(rng, greedy, shifts)]
    if what == "step":
        return [what, rng.choice((1, 1, 2, 5, 20))]
    if what == "cancel":
        return [what, rng.randrange(10)]
    if what == "save":
        return [what, rng.choice((None, 0, 1, 9))]
    if what == "load":
        return [what, rng.randrange(3), rng.choice((None, None, 0, 1))]
    return [what]


def _prompt(rng: random.Random, beginnings: list[list[int]]) -> list[int]:
    """Often one that begins as others do."""
    common = rng.choice(beginnings)[: rng.choice((0, 1, 5, 12, 25, 40))]
    return [*common, *(rng.randrange(3, 288) for _ in range(rng.choice((1, 1, 2, 6, 15))))]


def _options(rng: random.Random, greedy: bool, shifts: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"max_tokens": rng.choice((1, 2, 5, 12, 30, None)), "temperature": 0}
    if not greedy and rng.random() < 0.6:
        options |= {"temperature": rng.choice((0.7, 1.5)), "seed": rng.randrange(1000)}
        if rng.random() < 0.3:
            options |= {"repeat_penalty": 1.3, "top_k": rng.choice((0, 3)), "min_p": 0.0}
    if rng.random() < 0.2:
        options["stop"] = rng.choice((["a"], ["\n", "zz"], [" "]))
    if rng.random() < 0.2:
        options["logprobs"] = rng.choice((0, 3))
    if rng.random() < 0.2:
        options["priority"] = rng.choice((-1, 1))
    if shifts and rng.random() < 0.3:
        options |= {"context_shift": True, "n_keep": rng.choice((-1, 0, 3))}
        options["max_tokens"] = rng.choice((5, 40, 120))
    return options


class _History:
    """What was done to a model, and what came of it."""

    def __init__(self, llm: Llama) -> None:
        self.llm = llm
        self.requests: dict[int, tuple[list[int], dict[str, Any]]] = {}
        self.pieces: dict[int, list[Piece]] = {}
        self.ended_early: set[int] = set()  # cancelled, or reset
        self._states: list[LlamaState] = []
        self._n_calls = 0

    @property
    def shifts(self) -> bool:
        """Whether the context of any request is shifted in a cache that several share."""
        shared = self.llm.engine.context.memory.n_stream == 1
        return shared and any("context_shift" in each for _, each in self.requests.values())

    def do(self, what: str, *arguments: Any) -> None:
        getattr(self, f"_{what}")(*arguments)

    def finish(self) -> None:
        """Step until nothing is left."""
        for _ in range(_MOST_STEPS):
            if not self.llm.engine.has_work:
                break
            self._step(1)
        else:
            raise Wrong("never ends", f"after {_MOST_STEPS} steps")
        for id in self.requests.keys() - self.ended_early:
            if not self.pieces[id] or self.pieces[id][-1].finish_reason is None:
                raise Wrong("answer lost", f"request {id}")

    def _add(self, prompt: list[int], options: dict[str, Any]) -> None:
        try:
            request = self.llm.request(prompt, **options)
        except BadBatch:
            if len(prompt) <= self.llm.n_ctx_seq():
                raise Wrong("sound prompt refused", f"{len(prompt)} tokens") from None
            return
        id = self.llm.engine.add(request)
        self.requests[id] = prompt, options
        self.pieces[id] = []

    def _step(self, n: int) -> None:
        for _ in range(n):
            for output in self.llm.engine.step():
                if isinstance(output.piece, CacheFull) and self.shifts:
                    self.ended_early.add(output.id)  # its context was shifted: it cannot wait
                    continue
                if isinstance(output.piece, Exception):
                    raise output.piece
                made = self.pieces[output.id]
                if output.id in self.ended_early:
                    continue  # made before it was cancelled
                if made and made[-1].finish_reason is not None:
                    raise Wrong("answer goes on", f"request {output.id}")
                made.append(output.piece)

    def _cancel(self, number: int) -> None:
        ids = list(self.requests)
        if ids:
            id = ids[number % len(ids)]
            self.llm.engine.cancel(id)
            if not self.pieces[id] or self.pieces[id][-1].finish_reason is None:
                self.ended_early.add(id)

    def _call(self, prompt: list[int], options: dict[str, Any]) -> None:
        """A completion in between, which moves the others too."""
        if len(prompt) > self.llm.n_ctx_seq():
            return
        result = self.llm(prompt, **{k: v for k, v in options.items() if k != "logprobs"})
        self._n_calls += 1
        choice = result["choices"][0]
        self.requests[-self._n_calls] = prompt, options
        piece = Piece(choice["text"], None, [], choice["finish_reason"])
        self.pieces[-self._n_calls] = [piece]

    def _save(self, seq: int | None) -> None:
        with contextlib.suppress(GgmlpyError):
            self._states.append(self.llm.save_state(seq=seq))

    def _load(self, number: int, seq: int | None) -> None:
        if self._states:
            with contextlib.suppress(GgmlpyError):
                self.llm.load_state(self._states[number % len(self._states)], seq=seq)

    def _reset(self) -> None:
        unfinished = [
            id for id, made in self.pieces.items() if not made or made[-1].finish_reason is None
        ]
        self.ended_early.update(unfinished)
        self.llm.reset()


def _check(
    pieces: list[Piece], request: tuple[list[int], dict[str, Any]], alone: Llama, unified: bool
) -> None:
    """The text is the one that the request gets alone; unified, up to the first near tie."""
    prompt, options = request
    text = "".join(piece.text for piece in pieces)
    alone.reset()
    asked = alone.request(prompt, **(options | {"logprobs": 2}))
    alone.engine.add(asked)
    want: list[Piece] = []
    while alone.engine.has_work:
        for output in alone.engine.step():
            if isinstance(output.piece, Exception):
                raise output.piece
            want.append(output.piece)
    wanted_text = "".join(piece.text for piece in want)
    if text != wanted_text and not (unified and _nearly_tied(want)):
        raise Wrong("text differs", f"{text!r}, alone {wanted_text!r}")
    reason = pieces[-1].finish_reason
    if text == wanted_text and reason != want[-1].finish_reason:
        raise Wrong("finish reason differs", f"{reason}, alone {want[-1].finish_reason}")


def _nearly_tied(pieces: list[Piece]) -> bool:
    """Whether any token was only just the likeliest."""
    for piece in pieces:
        for logprob in piece.logprobs:
            best = sorted(logprob.top.values())[-2:]
            if len(best) == 2 and best[1] - best[0] < _TIE:
                return True
    return False

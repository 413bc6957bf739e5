"""What becomes of tokens that are known beforehand: text held back to the end, penalties."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import Llama
from ggmlpy.engine.generation import Piece
from ggmlpy.engine.options import LogitsCallback
from tests.models.tiny import Tiny, write_model

END = 2
BYTE = 3  # the token of byte 0
PROMPT = [5, 6]


def letter(c: str) -> int:
    return BYTE + 256 + 1 + ord(c) - ord("a")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    path = write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny())
    with Llama(path, backend="null") as llm:
        yield llm


def pieces(llm: Llama, **options: Any) -> list[Piece]:
    """The whole answer to PROMPT, step by step."""
    llm.engine.add(llm.request(PROMPT, temperature=0, **options))
    found = []
    while llm.engine.has_work:
        for output in llm.engine.step():
            assert isinstance(output.piece, Piece)
            found.append(output.piece)
    return found


def forced(tokens: list[int]) -> LogitsCallback:
    """These tokens, one after another."""
    left = iter(tokens)

    def process(seen: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        logits[:] = 0
        logits[next(left)] = 1
        return logits

    return process


# --- text that is held back ---------------------------------------------------------------------

X, A, B = map(letter, "xab")
HELD: list[tuple[str, list[int], list[str], str, bool]] = [
    ("half a character", [X, BYTE + 0xC3], [], "x\ufffd", False),
    ("three quarters", [BYTE + 0xF0, BYTE + 0x9F, BYTE + 0x8E], [], "\ufffd", False),
    ("beginning of a stop", [X, A], ["ab"], "xa", False),
    ("both", [A, BYTE + 0xC3], ["a\ufffdb"], "a\ufffd", False),
    ("a stop that the end makes", [X, BYTE + 0xC3], ["\ufffd"], "x", True),
    ("a stop that waits for an earlier one", [X, A, B], ["b", "abc"], "xa", True),
]


@pytest.mark.parametrize("ended", [True, False], ids=["end token", "max_tokens"])
@pytest.mark.parametrize(
    ("tokens", "stop", "text", "stops"), [h[1:] for h in HELD], ids=[h[0] for h in HELD]
)
def test_nothing_held_back_is_lost(
    llm: Llama, tokens: list[int], stop: list[str], text: str, stops: bool, ended: bool
) -> None:
    made = [*tokens, END] if ended else tokens
    found = pieces(llm, max_tokens=len(made), stop=stop, logits_processor=forced(made))
    assert "".join(piece.text for piece in found) == text
    reasons = [piece.finish_reason for piece in found]
    assert reasons == [None] * (len(made) - 1) + ["stop" if ended or stops else "length"]


# --- penalties ----------------------------------------------------------------------------------


def four_likely(seen: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """5 before 6 before 7 before 8."""
    logits[:] = 0
    logits[5:9] = 4, 3, 2, 1
    return logits


@pytest.mark.parametrize(
    ("last_n", "tokens"), [(64, [7, 8]), (-1, [7, 8]), (1, [5, 6]), (2, [7, 5]), (0, [5, 5])]
)
def test_penalties_see_the_prompt_and_what_was_written(
    llm: Llama, last_n: int, tokens: list[int]
) -> None:
    options = {"presence_penalty": 9.0, "penalty_last_n": last_n}
    found = pieces(llm, max_tokens=2, logits_processor=four_likely, **options)
    assert [piece.token for piece in found] == tokens


def test_a_logits_processor_may_keep_what_it_is_given(llm: Llama) -> None:
    kept: list[NDArray[np.float32]] = []

    def keep(seen: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        kept.append(logits)
        return four_likely(seen, np.empty_like(logits))

    pieces(llm, max_tokens=3, logits_processor=keep)
    assert len(kept) == 3
    assert not np.shares_memory(kept[0], kept[1])
    assert not np.shares_memory(kept[1], kept[2])

"""PLaMo-2: the least cost of all, byte tokens."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy.errors import TokenizerError
from ggmlpy.text.tokenizer import Tokenizer
from tests.unit.random_vocabularies import plamo2_metadata
from tests.unit.vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    UNUSED,
    keyed,
    without,
)

TOKENIZER = Tokenizer.from_metadata(plamo2_metadata())
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
N = 4 + 256  # the first piece's id


def small(pieces: dict[str, float], types: list[int] | None = None, **keys: Any) -> Tokenizer:
    names = [f"<|plamo:{name}|>" for name in ("unk", "bos", "eos", "pad")]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    metadata = keyed(
        model="plamo2",
        tokens=[*names, *bytes_, *pieces],
        token_type=[UNKNOWN] + [CONTROL] * 3 + [BYTE] * 256 + (types or [NORMAL] * len(pieces)),
        scores=[0.0] * N + list(pieces.values()),
    )
    return Tokenizer.from_metadata(metadata | keyed(**keys), "m.gguf")


def least_cost(text: str, pieces: dict[str, float]) -> float:
    """The cost of the cheapest spelling, in scores, by trying all."""
    if not text:
        return 0.0
    ways = [1000.0 + least_cost(text[1:], pieces)]
    ways += [
        least_cost(text[n:], pieces) - pieces[text[:n]]
        for n in range(1, len(text) + 1)
        if text[:n] in pieces
    ]
    return min(ways)


@given(st.integers(0, 10_000), st.text("ab \u00e9", max_size=9))
def test_the_least_cost_of_all(seed: int, text: str) -> None:
    rng = random.Random(seed)
    drawn = ("".join(rng.choices("ab ", k=rng.randint(1, 4))) for _ in range(rng.randint(0, 9)))
    pieces = {piece: rng.choice([-1.0, -2.5, -999.0, -1500.0]) for piece in drawn}
    tokenizer = small(pieces)
    ids = tokenizer.encode(text)
    scores = [tokenizer.vocab.scores[id] for id in ids if id >= N]
    spelt_in_bytes = b"".join(tokenizer.token_bytes(id) for id in ids if id < N).decode()
    assert 1000.0 * len(spelt_in_bytes) - sum(scores) == least_cost(text, pieces)
    assert tokenizer.decode(ids) == text


@given(TEXTS)
def test_round_trip(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text.removeprefix("\ufeff")
    stream = TOKENIZER.stream()
    assert "".join(map(stream.push, ids)) + stream.finish() == TOKENIZER.decode(ids)


def test_ties() -> None:
    """Of equal costs the longest first token counts."""
    tokenizer = small({"a": -1.0, "aa": -2.0, "aaa": -3.0, "b": -1000.0})
    assert tokenizer.encode("aaaa") == [N + 2, N]
    assert tokenizer.encode("b") == [N + 3]  # not its byte


def test_scores_count_in_ten_thousandths() -> None:
    assert small({"a": -1.0, "aa": -2.00004}).encode("aa") == [N + 1]  # a tie
    assert small({"a": -1.0, "aa": -2.00006}).encode("aa") == [N, N]
    for unusable in (-2000.0, float("-inf"), float("inf")):
        assert small({"a": unusable}).encode("a") == [4 + 0x61]


def test_characters_are_spelt_in_bytes() -> None:
    ids = small({}).encode("a\u00e9\u4eca\U0001f600")
    assert bytes(id - 4 for id in ids) == "a\u00e9\u4eca\U0001f600".encode()
    assert TOKENIZER.decode(TOKENIZER.encode(b"a\xff")) == "a\ufffd"


def test_special_tokens_are_no_text() -> None:
    tokenizer = small({"x": -1.0, "[PAD1]": 0.0}, [NORMAL, UNUSED], add_bos_token=True)
    assert len(tokenizer.encode("<|plamo:eos|>")) == 13
    assert tokenizer.encode("<|plamo:eos|>x", special=True) == [2, N]
    assert tokenizer.encode("x", add_bos=True) == [N]  # whatever the file says
    assert len(tokenizer.encode("[PAD1]")) == 6
    assert tokenizer.decode([1, N]) == "x"


def test_a_normal_end_tag() -> None:
    tokenizer = small({"</s>": -1.0}, eos_token_id=2)
    assert tokenizer.eog_ids == {2}
    assert tokenizer.encode("</s>") == [N]


def test_the_mark_of_spaces_is_itself() -> None:
    tokenizer = small({SPACE: -1.0})
    assert tokenizer.decode(tokenizer.encode(f"a {SPACE}")) == f"a {SPACE}"


def test_what_is_missing_or_wrong() -> None:
    with pytest.raises(TokenizerError, match=r"scores is missing"):
        Tokenizer.from_metadata(without(plamo2_metadata(), "scores"))
    tokens = [text for text in plamo2_metadata()["tokenizer.ggml.tokens"] if text != "<0x0A>"]
    tokenizer = Tokenizer.from_metadata(plamo2_metadata(tokens=tokens))
    with pytest.raises(TokenizerError, match=r"tokens has no byte token <0x0A>"):
        tokenizer.encode("a")

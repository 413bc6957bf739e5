"""What a context and a batch do not take: other kinds, sizes, sequences, positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmlpy.errors import ArgumentError, BadBatch, Unsupported
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.spans import MAX_POSITION
from ggmlpy.runtime.context import Context
from tests.models.tiny import Tiny, write_model


def test_a_context_takes_types_by_name_and_refuses_what_is_no_size(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", Tiny(n_head=2, n_head_kv=1, n_rot=32))
    context = Context.open(path, backend="reference", n_ctx=64, type_k="q8_0", type_v=2)
    (cache,) = context.memory.caches
    assert (str(cache.store.type_k), str(cache.store.type_v)) == ("q8_0", "q4_0")
    with pytest.raises(Unsupported, match="type_v is 'q9'"):
        Context.open(path, backend="reference", n_ctx=64, type_v="q9")
    with pytest.raises(ArgumentError, match=r"^Context: n_ctx is a str: it must be a whole number"):
        Context.open(path, backend="reference", n_ctx="64")


def test_a_batch_says_what_sequences_must_be() -> None:
    with pytest.raises(ArgumentError, match=r"add: seq_ids is an int: it must be a list, a tuple"):
        Batch().add(1, 0, 0)  # type: ignore[arg-type]


WRONG: list[Any] = [
    "a",
    "",
    None,
    ["a"],
    object(),
    1.5,
    2**70,
    -(2**70),
    np.ones(3),
    np.array(1),
    {},
]


@pytest.fixture(scope="module")
def of_four(tmp_path_factory: pytest.TempPathFactory) -> Context:
    path = write_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", Tiny(n_rot=16))
    context = Context.open(path, backend="reference", n_ctx=64, n_seq_max=4)
    context.decode([5, 6, 7])
    return context


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("decode", {"tokens": [1], "seq": 1, "all_logits": False}),
        ("seq_rm", {"seq": 0, "start": 0, "stop": 2}),
        ("seq_cp", {"source": 0, "target": 1, "start": 0, "stop": 2}),
        ("seq_keep", {"seq": 0}),
        ("seq_add", {"seq": 0, "start": 0, "stop": 2, "delta": 1}),
        ("seq_div", {"seq": 0, "start": 0, "stop": 2, "divisor": 2}),
        ("seq_pos_min", {"seq": 0}),
        ("seq_pos_max", {"seq": 0}),
        ("n_past", {"seq": 0}),
    ],
)
def test_what_is_no_sequence_position_or_token(
    of_four: Context, method: str, arguments: dict[str, Any]
) -> None:
    for name in arguments:
        for value in WRONG:
            if name == "stop" and value is None:
                continue
            with pytest.raises(ArgumentError, match=rf"^Context\.{method}: {name}(\[0\])? is "):
                getattr(of_four, method)(**{**arguments, name: value})
        for value in (-(2**63), 2**63 - 1):
            try:
                getattr(of_four, method)(**{**arguments, name: value})
            except (ArgumentError, BadBatch):
                continue
            assert name in ("start", "stop")
    with pytest.raises(ArgumentError, match=r"^Context\.decode: tokens\[1\] is a str: it must be"):
        of_four.decode([1, "a"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("add", {"token": 1, "position": 0, "seq_ids": (0,), "output": True}),
        ("add_sequence", {"seq": 0, "tokens": [1], "start": 0, "all_outputs": True}),
    ],
)
def test_what_a_batch_does_not_take(method: str, arguments: dict[str, Any]) -> None:
    batch = Batch()
    for name in arguments:
        for value in WRONG:
            with pytest.raises(ArgumentError, match=rf"^Batch\.{method}: {name}(\[0\])? is "):
                getattr(batch, method)(**{**arguments, name: value})
    assert batch == Batch()


def test_no_token_comes_after_the_last_position(tmp_path: Path) -> None:
    """Neither in a step that is arranged anew, nor in one that goes on from the step before."""
    path = write_model(tmp_path / "tiny.gguf", Tiny())
    context = Context.open(path, backend="reference", n_ctx=64)
    context.decode([5])
    context.seq_add(0, 0, None, MAX_POSITION - 2)
    for _ in range(2):
        context.decode([6])
    for tokens in ([7], [7, 8]):
        with pytest.raises(BadBatch, match=f"is at position {MAX_POSITION + 1}: above"):
            context.decode(tokens)
    assert context.seq_pos_max(0) == MAX_POSITION

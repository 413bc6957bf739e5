"""The two numbers of a context's size: what follows from each, and what contradicts."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from ggmlpy import AllocationError, ArgumentError, BadBatch, ContextWarning, Llama, Unsupported
from ggmlpy.runtime import context_setup
from ggmlpy.runtime.context_sizes import choose_sizes, warn_of_length
from tests.models.seeded import write_seeded
from tests.models.seeded_specs import SPECS
from tests.models.tiny import Tiny, write_model

TRAINED = 128


def sizes(
    n_ctx: int = 0, n_ctx_seq: int = 0, n_seq_max: int = 1, kv_unified: bool = False
) -> tuple[int, int]:
    return choose_sizes(n_ctx, n_ctx_seq, n_seq_max, kv_unified, TRAINED)


@pytest.mark.parametrize(
    ("options", "total", "most"),
    [
        ({}, 128, 128),
        ({"n_ctx": 100}, 100, 100),
        ({"n_ctx_seq": 100}, 100, 100),
        ({"n_seq_max": 4}, 128, 32),
        ({"n_seq_max": 3}, 126, 42),  # nobody asked for a number: the largest equal parts
        ({"n_ctx": 100, "n_seq_max": 4}, 100, 25),
        ({"n_ctx_seq": 100, "n_seq_max": 4}, 400, 100),
        ({"n_ctx": 400, "n_ctx_seq": 100, "n_seq_max": 4}, 400, 100),
        ({"n_seq_max": 3, "kv_unified": True}, 128, 128),
        ({"n_ctx": 100, "n_seq_max": 3, "kv_unified": True}, 100, 100),
        ({"n_ctx_seq": 30, "n_seq_max": 3, "kv_unified": True}, 90, 30),
        ({"n_ctx": 50, "n_ctx_seq": 30, "n_seq_max": 3, "kv_unified": True}, 50, 30),
        ({"n_ctx": 500, "n_ctx_seq": 128, "n_seq_max": 4, "kv_unified": True}, 500, 128),
    ],
)
def test_what_follows(options: dict[str, Any], total: int, most: int) -> None:
    assert sizes(**options) == (total, most)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_ctx": 100, "n_seq_max": 3}, "n_ctx is 100, of which 3 sequences cannot have equal"),
        ({"n_ctx": 3, "n_seq_max": 4}, "n_ctx is 3, of which 4 sequences cannot have equal"),
        (
            {"n_ctx": 100, "n_ctx_seq": 99},
            "n_ctx is 100, but n_seq_max = 1 times n_ctx_seq = 99 is 99: leave one of them out$",
        ),
        (
            {"n_ctx": 100, "n_ctx_seq": 50, "n_seq_max": 4},
            "n_ctx is 100, but n_seq_max = 4 times n_ctx_seq = 50 is 200: leave one",
        ),
        (
            {"n_ctx": 100, "n_ctx_seq": 101, "kv_unified": True},
            "n_ctx_seq is 101: more than all sequences together may have, n_ctx = 100",
        ),
        ({"n_ctx": -1}, "n_ctx is -1: it must be a whole number, at least 0"),
        ({"n_seq_max": 0}, "n_seq_max is 0: it must be a whole number, at least 1"),
    ],
)
def test_what_contradicts_is_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as raised:
        sizes(**options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"n_ctx": 129}, "n_ctx is 129"),
        ({"n_ctx_seq": 129, "n_seq_max": 2}, "n_ctx_seq is 129"),
        ({"n_ctx": 516, "n_seq_max": 4}, "n_ctx_seq is 129"),
        ({"n_ctx": 200, "n_seq_max": 4, "kv_unified": True}, "n_ctx is 200"),
    ],
)
def test_more_than_trained_is_a_warning(options: dict[str, Any], name: str) -> None:
    given = {"n_ctx": 0, "n_ctx_seq": 0, "n_seq_max": 1, "kv_unified": False} | options
    _, most = sizes(**given)
    del given["kv_unified"]
    with pytest.warns(ContextWarning, match=f"{name}, the model was trained with 128"):
        warn_of_length(**given, most=most, n_ctx_train=TRAINED)


def test_what_is_refused_is_not_warned_of_before(tmp_path: Path) -> None:
    """gpt2 has embeddings of as many positions as its training: more cannot be had."""
    path = write_seeded(tmp_path, "gpt2", SPECS["gpt2"])
    with warnings.catch_warnings(), pytest.raises(Unsupported, match="at most 256 tokens"):
        warnings.simplefilter("error")
        Llama(path, n_ctx=512, backend="null")


def test_no_memory_for_embeddings_is_typed(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **more: Any) -> None:
        raise MemoryError("out of it")

    with Llama(tiny_path, backend="null", n_ctx=32) as llm:
        monkeypatch.setattr(context_setup, "SequenceMemory", fails)
        with pytest.raises(AllocationError, match="a KV cache for n_ctx = 512 tokens: out of it; "):
            llm.embed([[1, 2]])


def test_the_limit_of_one_sequence_holds_where_all_share(tiny_path: Path) -> None:
    """20 tokens each, though the shared cache has room for 50."""
    options: dict[str, Any] = {"temperature": 0, "logit_bias": {2: -1000.0}}
    with Llama(
        tiny_path, backend="reference", n_ctx=50, n_ctx_seq=20, n_seq_max=3, kv_unified=True
    ) as llm:
        assert (llm.n_ctx(), llm.n_ctx_seq()) == (50, 20)
        made = llm("abc", max_tokens=None, **options)
        assert made["usage"]["total_tokens"] == 21  # the last one is not run
        assert made["choices"][0]["finish_reason"] == "length"
        assert llm.engine.context.memory.caches[0].cells.n_ctx == 50
        with pytest.raises(BadBatch, match="a sequence may have n_ctx_seq = 20"):
            llm([5] * 21)
        with pytest.raises(BadBatch, match="21 tokens, a sequence may have n_ctx_seq = 20"):
            llm.logits([5] * 21)
        many = list(llm.generate(["ab", "cd", "ef", "gh"], max_tokens=None, **options))
        assert [m["usage"]["total_tokens"] for m in many] == [21] * 4


def test_the_warning_points_at_who_asked(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf", Tiny())
    with pytest.warns(ContextWarning) as caught:
        Llama(path, n_ctx=1 << 14, backend="reference")
    assert [warning.filename for warning in caught] == [__file__]

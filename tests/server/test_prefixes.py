"""Which replica has seen the beginning of a prompt."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the extra ggmlpy[server] is not installed")
from ggmlpy.server.cluster import prefixes
from ggmlpy.server.cluster.prefixes import Prefixes, prompt_of


def test_the_longest_beginning_counts() -> None:
    seen = Prefixes()
    system = "You are a helpful assistant. " * 40
    seen.note(system + "What is a cat?", "a")
    seen.note("Something else. " * 40, "b")
    found = seen.matches(system + "What is a dog?", ["a", "b", "c"])
    assert found["a"] > 0.8
    assert (found["b"], found["c"]) == (0.0, 0.0)
    seen.keep(["b"])
    assert seen.matches(system, ["a", "b"]) == {"a": 0.0, "b": 0.0}


@given(st.text(max_size=2000), st.text(max_size=2000))
def test_shares_are_of_common_blocks(first: str, second: str) -> None:
    seen = Prefixes()
    seen.note(first, 0)
    share = seen.matches(second, [0])[0]
    assert 0.0 <= share <= 1.0
    size = prefixes._BLOCK
    blocks = [second[i : i + size] for i in range(0, len(second), size)]
    n = 0
    while n < len(blocks) and first.startswith("".join(blocks[: n + 1])):
        n += 1
    # A last block that is cut is another one than the whole block of the first text.
    assert share * len(blocks) <= n + 1e-9
    if first == second and second:
        assert share == 1.0


def test_the_oldest_beginnings_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "_MOST_BLOCKS", 4)
    seen = Prefixes()
    texts = [f"{i}" * 300 for i in range(4)]
    for text in texts:
        seen.note(text, "a")
    assert seen.matches(texts[0], ["a"])["a"] == 0.0
    assert seen.matches(texts[-1], ["a"])["a"] == 1.0


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({"prompt": "a"}, "a"),
        ({"prompt": ["a", "b"]}, "a\nb"),
        ({"prompt": [1, 2, 3]}, "1 2 3"),
        ({"messages": [{"role": "user", "content": "a"}]}, "user\na"),
        ({"system": "s", "messages": [{"content": [{"type": "text", "text": "a"}]}]}, "s\ntext\na"),
        ({"input": "a", "instructions": "s"}, "s\na"),
        ({"model": "m"}, ""),
        ([1], ""),
        (None, ""),
    ],
)
def test_the_prompt_of_any_api(body: Any, prompt: str) -> None:
    assert prompt_of(body) == prompt

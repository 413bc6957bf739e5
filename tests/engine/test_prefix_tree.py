"""The prefix tree against comparing all sequences token by token."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ggmlpy.common.prefix import n_common
from ggmlpy.engine.prefix_tree import PrefixTree

TOKENS = st.lists(st.integers(0, 2), max_size=9)


def common_by_tokens(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


@given(TOKENS, TOKENS, st.integers(0, 9))
def test_common_prefixes(a: list[int], b: list[int], at: int) -> None:
    assert n_common(a, b, at) == common_by_tokens(a, b[at:])


def check_form(tree: PrefixTree, held: dict[int, list[int]], group: int) -> None:
    """Every node of a group is needed, and its keys are those of the sequences through it."""
    assert (group in tree._roots) == bool(held)
    nodes = [(tree._roots[group], list[int]())] if held else []
    while nodes:
        node, before = nodes.pop()
        path = before + node.tokens
        if node.parent is not None:
            assert node.tokens
            assert node.parent.children[node.tokens[0]] is node
            through = {key for key, tokens in held.items() if tokens[: len(path)] == path}
            assert node.keys == through
            assert through
            assert node.ends == {key for key in through if held[key] == path}
            assert len(node.children) != 1 or any(held[key] == path for key in through)
        nodes += [(child, path) for child in node.children.values()]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), TOKENS), max_size=30), TOKENS)
def test_every_history(changes: list[tuple[int, bool, list[int]]], prompt: list[int]) -> None:
    """Odd and even keys are of different groups."""
    tree = PrefixTree()
    everything: dict[int, list[int]] = {}
    for key, is_removed, tokens in changes:
        if is_removed:
            tree.remove(key)
            everything.pop(key, None)
        else:
            tree.extend(key, tokens, key % 2)
            everything[key] = everything.get(key, []) + tokens
        assert len(tree) == len(everything)
        assert all(key in tree for key in everything)
        for group in (0, 1):
            held = {key: known for key, known in everything.items() if key % 2 == group}
            check_form(tree, held, group)
            check_answers(tree, held, group, [prompt, *everything.values()])


def check_answers(
    tree: PrefixTree, held: dict[int, list[int]], group: int, prompts: list[list[int]]
) -> None:
    for asked in prompts:
        want = {key: common_by_tokens(asked, known) for key, known in held.items()}
        assert tree.common(asked, group) == {key: n for key, n in want.items() if n}
        most = max(want.values(), default=0)
        longest = tree.longest(asked, group)
        assert (0 if longest is None else longest[1]) == most
        assert longest is None or want[longest[0]] == most
        whole = [key for key, n in want.items() if 0 < n == len(held[key])]
        assert tree.prefixes(asked, group) == sorted(whole, key=lambda key: (len(held[key]), key))


class Counted(list[int]):
    """Tokens that count how many of them are read."""

    n_read = 0

    def __getitem__(self, at):  # type: ignore[no-untyped-def]
        self.n_read += len(range(*at.indices(len(self)))) if isinstance(at, slice) else 1
        return list.__getitem__(self, at)


def test_a_lookup_reads_the_prompt_once_whatever_is_held() -> None:
    tree, beginning = PrefixTree(), list(range(1000))
    for key in range(200):
        tree.extend(key, [*beginning[: 5 * key], 5000 + key])
    prompt = Counted(beginning)
    assert set(tree.common(prompt).values()) == {5 * key for key in range(1, 200)}
    # A run is read up to its end, and the first token of each of the 199 runs once more.
    assert prompt.n_read <= 1000 + 2 * 200

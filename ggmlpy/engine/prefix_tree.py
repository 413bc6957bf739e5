"""A radix tree over token sequences: how much of a prompt begins each sequence that is held.

Nodes have runs of tokens that are not empty, and differ from their siblings in the first one. A
lookup reads each token of the prompt once, however many sequences are held; `common` also visits
the keys of each node on the way. Sequences of different groups have nothing in common. Source:
RadixAttention (Zheng et al., 2023).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from ggmlpy.common.prefix import n_common


class _Node:
    __slots__ = ("children", "ends", "keys", "parent", "tokens")

    def __init__(self, parent: _Node | None, tokens: list[int], keys: set[int]) -> None:
        self.parent = parent
        self.tokens = tokens  # from the end of the parent on
        self.keys = keys  # of all sequences that go through this node, or end in it
        self.ends: set[int] = set()  # of those that end in it
        self.children: dict[int, _Node] = {}  # by their first token


class PrefixTree:
    """Token sequences by key. All of them end at the end of a node."""

    def __init__(self) -> None:
        self._roots: dict[Hashable, _Node] = {}  # by group
        self._ends: dict[int, _Node] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._ends

    def __len__(self) -> int:
        return len(self._ends)

    def extend(self, key: int, tokens: Sequence[int], group: Hashable = ()) -> None:
        """Append tokens to the sequence of a key, which is empty and of this group if the key is
        new.

        Takes time in proportion to the new tokens.
        """
        node = self._ends.get(key)
        if node is None:
            node = self._roots.setdefault(group, _Node(None, [], set()))
        node.keys.add(key)
        self._end_in(node, key)
        self._go_on(key, node, tokens)
        if node.parent is not None:
            self._merge(node)  # nothing may end there any more

    def _go_on(self, key: int, node: _Node, tokens: Sequence[int]) -> None:
        """Append tokens to a sequence that ends in `node`."""
        at = 0
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                self._append(node, key, list(tokens[at:]))
                return
            n = n_common(child.tokens, tokens, at)
            if n < len(child.tokens):
                child = self._split(child, n)
            child.keys.add(key)
            self._end_in(child, key)
            node = child
            at += n

    def _end_in(self, node: _Node, key: int) -> None:
        """Let a sequence end in `node`."""
        if key in self._ends:
            self._ends[key].ends.discard(key)
        self._ends[key] = node
        node.ends.add(key)

    def remove(self, key: int) -> None:
        """Drop the sequence of a key, if there is one."""
        node: _Node | None = self._ends.pop(key, None)
        if node is not None:
            node.ends.discard(key)
        while node is not None:
            node.keys.discard(key)
            parent = node.parent
            if parent is not None and not node.keys:
                del parent.children[node.tokens[0]]
            elif parent is not None:
                self._merge(node)
            elif not node.keys:
                self._roots = {group: root for group, root in self._roots.items() if root.keys}
            node = parent

    def common(self, tokens: Sequence[int], group: Hashable = ()) -> dict[int, int]:
        """The lengths of the prefixes that a group's sequences have in common with `tokens`, if
        any."""
        found: dict[int, int] = {}
        for node, _, n in self._path(tokens, group):
            found.update(dict.fromkeys(node.keys, n))
        return found

    def longest(self, tokens: Sequence[int], group: Hashable = ()) -> tuple[int, int] | None:
        """A sequence of a group with the longest prefix in common with `tokens`, and the length of
        that."""
        found = None
        for node, _, n in self._path(tokens, group):
            found = node, n
        return None if found is None else (next(iter(found[0].keys)), found[1])

    def prefixes(self, tokens: Sequence[int], group: Hashable = ()) -> list[int]:
        """The sequences of a group that `tokens` begin with, the shortest first."""
        return [
            key
            for node, is_whole, _ in self._path(tokens, group)
            if is_whole
            for key in sorted(node.ends)
        ]

    def _path(self, tokens: Sequence[int], group: Hashable) -> Iterator[tuple[_Node, bool, int]]:
        """The nodes that `tokens` begin with, whether as a whole, and how many tokens so far."""
        found, at = self._roots.get(group), 0
        if found is None:
            return
        node = found
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                return
            n = n_common(child.tokens, tokens, at)
            at += n
            yield child, n == len(child.tokens), at
            if n < len(child.tokens):
                return
            node = child

    def _append(self, node: _Node, key: int, tokens: list[int]) -> None:
        """Let the sequence that ends in `node` go on with tokens that no child begins with."""
        if node.parent is not None and node.keys == {key}:
            node.tokens += tokens
            return
        child = node.children[tokens[0]] = _Node(node, tokens, {key})
        self._end_in(child, key)

    def _split(self, node: _Node, n: int) -> _Node:
        """Make the first `n` tokens of a node one of their own, and return that."""
        assert node.parent is not None
        upper = _Node(node.parent, node.tokens[:n], set(node.keys))
        node.parent.children[upper.tokens[0]] = upper
        node.parent, node.tokens = upper, node.tokens[n:]
        upper.children[node.tokens[0]] = node
        return upper

    def _merge(self, node: _Node) -> None:
        """Join a node with its only child, if no sequence ends between them."""
        if len(node.children) != 1:
            return
        (child,) = node.children.values()
        if child.keys != node.keys:
            return
        node.tokens += child.tokens
        node.children, node.ends = child.children, child.ends
        for below in node.children.values():
            below.parent = node
        self._ends.update(dict.fromkeys(node.ends, node))

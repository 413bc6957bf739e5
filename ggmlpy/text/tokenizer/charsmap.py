"""SentencePiece's precompiled map of characters, by which text is normalised.

    size u32 | units: size bytes of u32 | replacements, each ended by a zero byte

The units are a double array (Darts) whose paths spell UTF-8:

    unit  label 0-7 and 31 | leaf 8 | offset shift 9 | offset 10-30
    leaf  position in the replacements 0-30

The child of a node for a byte is the unit at the node's offset XOR that byte, if its label is that
byte; offsets are relative to the unit's own index, by XOR.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import TokenizerError
from ggmlpy.text.tokenizer.keys import Keys
from ggmlpy.text.tokenizer.pieces import Beginnings

_KEY = "precompiled_charsmap"
_LABEL_BITS = np.uint32(0x8000_00FF)
_MAX_KEY_BYTES = 256  # of the 225,000 keys of NFKC the longest has 12
_MAX_NODES = 1 << 21

_Indices = NDArray[np.uint32]


class Charsmap:
    """Replaces, from left to right, the longest text at each position that the map has."""

    def __init__(self, replacements: dict[str, str]) -> None:
        self._replacements = replacements
        self._beginnings = Beginnings(replacements)
        self._candidate = _candidates(replacements)

    @classmethod
    def from_keys(cls, keys: Keys) -> Charsmap:
        """The file's map; one without replacements if the file has none.

        Raises TokenizerError if sizes or offsets are outside the data, or a text is not UTF-8.
        """
        array = keys.array(_KEY)
        return cls({} if array is None else _Units(keys, _checked_bytes(keys, array)).read())

    def apply(self, text: str) -> str:
        parts: list[str] = []
        at = 0
        for match in self._candidate.finditer(text):
            begin = match.start()
            if begin < at:
                continue
            for length in self._beginnings.lengths(text, begin):
                replacement = self._replacements.get(text[begin : begin + length])
                if replacement is not None:
                    parts += [text[at:begin], replacement]
                    at = min(begin + length, len(text))
                    break
        return "".join([*parts, text[at:]]) if parts else text


class _Units:
    """The double array of a map, and its replacements."""

    def __init__(self, keys: Keys, data: bytes) -> None:
        self._keys = keys
        n_bytes = int.from_bytes(data[:4], "little")
        if len(data) < 5 or n_bytes % 4 or 4 + n_bytes >= len(data):
            raise keys.error(_KEY, f"has {len(data)} bytes, which its header contradicts")
        self._units = np.frombuffer(data, "<u4", n_bytes // 4, 4).astype(np.uint32)
        labels = self._units & _LABEL_BITS
        labelled = np.flatnonzero((labels > 0) & (labels < 256)).astype(np.uint32)
        parents = labelled ^ labels[labelled]
        order = np.argsort(parents, kind="stable")
        self._by_parent, self._parents = labelled[order], parents[order]
        self._texts = data[4 + n_bytes :]

    def read(self) -> dict[str, str]:
        """Every key and its replacement. Walks all paths, level by level."""
        found: dict[str, str] = {}
        if len(self._units) == 0:
            return found
        offsets, prefixes = self._offsets(np.zeros(1, np.uint32)), [b""]
        n_nodes = 0
        for _ in range(_MAX_KEY_BYTES):
            nodes, spelt = self._children(offsets, prefixes)
            n_nodes += len(spelt)
            if not spelt or n_nodes > _MAX_NODES:
                break
            offsets, prefixes = self._offsets(nodes), spelt
            leaves = np.flatnonzero(self._units[nodes] >> np.uint32(8) & np.uint32(1))
            ends = offsets[leaves]
            if ends.size and int(ends.max()) >= len(self._units):
                raise self._beyond()
            values = self._units[ends] & np.uint32(0x7FFF_FFFF)
            texts = {value: self._replacement(value) for value in set(values.tolist())}
            for leaf, value in zip(leaves.tolist(), values.tolist(), strict=True):
                found[self._text(spelt[leaf])] = texts[value]
        if spelt:
            raise self._endless()
        return found

    def _children(self, offsets: _Indices, prefixes: list[bytes]) -> tuple[_Indices, list[bytes]]:
        """The indices of all children of some nodes, and the bytes that lead to each."""
        if offsets.size and int(offsets.max()) | 0xFF >= len(self._units):
            raise self._beyond()
        begins = np.searchsorted(self._parents, offsets, "left")
        counts = np.searchsorted(self._parents, offsets, "right") - begins
        if int(counts.sum()) > _MAX_NODES:
            raise self._endless()
        rows = np.repeat(np.arange(len(offsets)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        nodes = self._by_parent[begins[rows] + within]
        labels = self._units[nodes].astype(np.uint8).tobytes()
        return nodes, [prefixes[row] + labels[i : i + 1] for i, row in enumerate(rows.tolist())]

    def _offsets(self, nodes: _Indices) -> _Indices:
        units = self._units[nodes]
        shifts = (units & np.uint32(1 << 9)) >> np.uint32(6)
        return nodes ^ ((units >> np.uint32(10)) << shifts)

    def _beyond(self) -> TokenizerError:
        n_units = len(self._units)
        return self._keys.error(_KEY, f"is damaged: an offset is beyond its {n_units} units")

    def _endless(self) -> TokenizerError:
        return self._keys.error(_KEY, "is damaged: its double array has paths without an end")

    def _replacement(self, begin: int) -> str:
        end = self._texts.find(0, begin)
        if begin >= len(self._texts) or end < 0:
            raise self._keys.error(_KEY, f"is damaged: no replacement ends after byte {begin}")
        return self._text(self._texts[begin:end])

    def _text(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self._keys.error(_KEY, f"is damaged: {data[:20]!r} is not UTF-8") from error


def _checked_bytes(keys: Keys, array: Sequence[Any]) -> bytes:
    values = keys.numbers(_KEY, array)
    if values.dtype.kind not in "iu" or np.any((values < -128) | (values > 255)):
        raise keys.error(_KEY, "must hold bytes")
    return values.astype(np.uint8).tobytes()


def _candidates(texts: dict[str, str]) -> re.Pattern[str]:
    """Matches a character with which one of the texts may begin."""
    single = {text for text in texts if len(text) == 1}
    longer = [text for text in texts if len(text) > 1]
    ways = [f"[{_escaped(single)}]"] if single else []
    if longer:
        firsts, seconds = {text[0] for text in longer}, {text[1] for text in longer}
        ways.append(f"[{_escaped(firsts)}](?=[{_escaped(seconds)}])")
    return re.compile("|".join(ways) or "(?!)")


def _escaped(chars: set[str]) -> str:
    return "".join(map(re.escape, sorted(chars)))

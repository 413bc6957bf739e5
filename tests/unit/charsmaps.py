"""Writes SentencePiece's precompiled maps of characters, in the simplest of their layouts."""

from __future__ import annotations

import struct
from collections.abc import Mapping


def charsmap(replacements: Mapping[str, str]) -> bytes:
    """The map as a GGUF file has it. Each node of the tree has a block of 256 units to itself."""
    tree: dict[bytes, set[int]] = {b"": set()}
    for key in replacements:
        data = key.encode()
        for n in range(len(data)):
            tree.setdefault(data[:n], set()).add(data[n])
            tree.setdefault(data[: n + 1], set())
    texts, begins = b"", dict[str, int]()
    for text in sorted(set(replacements.values())):
        begins[text] = len(texts)
        texts += text.encode() + b"\0"
    leaves = {key.encode(): begins[text] for key, text in replacements.items()}
    blocks = {path: 256 * (i + 1) for i, path in enumerate(tree)}
    units = [0] * (256 * (len(tree) + 1))
    for path, block in blocks.items():
        at, label = (blocks[path[:-1]] ^ path[-1], path[-1]) if path else (0, 0)
        offset = at ^ block
        # An offset of whole blocks may be stored without its low byte.
        stored = offset << 10 if offset & 0xFF else (offset >> 8) << 10 | 1 << 9
        units[at] = stored | label | (path in leaves) << 8
        if path in leaves:
            units[block] = 1 << 31 | leaves[path]
    array = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(array)) + array + texts

"""Locating the strings of an array.

There is no index of strings: each is its length (u64) and that many bytes, so the next key is only
found by stepping over all of them, hundreds of thousands in a large vocabulary. `string_starts`
takes many such steps at once in numpy, and its result is used by all later accesses.
"""

from __future__ import annotations

import array
import struct

import numpy as np
from numpy.typing import NDArray

from ggmlpy.gguf.cursor import Cursor

_WINDOW = 1 << 17  # bytes searched at a time: small enough for the L2 cache
_MIN_GUESSED = 64  # with fewer strings a loop is faster than numpy


def string_starts(cursor: Cursor, n: int) -> NDArray[np.int64]:
    """Where each of the next `n` strings begins and the last one ends: `n + 1` positions.

    In each window the starts are first guessed all at once, and used as far as they are right; the
    rest of the window is read string by string. Moves the cursor past the strings.
    """
    pieces: list[NDArray[np.int64]] = []
    n_left = n
    while n_left:
        cursor.check_count(n_left, 8, "strings")
        window_end = min(cursor.pos + _WINDOW, cursor.end)
        if n_left >= _MIN_GUESSED and cursor.part.byte_order == "little":
            guessed = _guess_starts(cursor, window_end, n_left)
            pieces.append(guessed)
            n_left -= len(guessed)
        walked = _walk_starts(cursor, window_end, n_left, n)
        pieces.append(walked)
        n_left -= len(walked)
    pieces.append(np.array([cursor.pos], np.int64))
    return np.concatenate(pieces)


def _guess_starts(cursor: Cursor, window_end: int, n: int) -> NDArray[np.int64]:
    """The starts of up to `n` strings at the beginning of the window; moves past these strings.

    A length below 65,536 ends in six zero bytes, which are very rare in text: where six or more
    zeros end, a length probably ends. If string i begins at guess i, its length gives the start of
    string i + 1. If that is guess i + 1, for all i from a known start on, the guesses are proven.
    """
    stored = np.frombuffer(cursor.view[cursor.pos : window_end], np.uint8)
    zero = stored == 0
    zero2 = zero[:-1] & zero[1:]
    zero6 = zero2[:-4] & zero2[2:-2] & zero2[4:]  # six zeros begin here
    starts = np.flatnonzero(zero6[:-1] > zero6[1:]) - 2  # two low bytes precede the last six
    if len(starts) == 0 or starts[0] != 0:
        return starts[:0]
    lengths = stored[starts] + stored[starts + 1].astype(np.int64) * 256
    ends = starts + 8 + lengths
    wrong = np.flatnonzero(ends[:-1] != starts[1:])
    n_right = min(n, int(wrong[0]) + 1 if len(wrong) else len(starts))
    if ends[n_right - 1] > cursor.end - cursor.pos:
        n_right -= 1  # `_walk_starts` will reject this string
    begin = cursor.pos
    if n_right:
        cursor.pos += int(ends[n_right - 1])
    right: NDArray[np.int64] = starts[:n_right] + begin
    return right


def _walk_starts(cursor: Cursor, window_end: int, n: int, n_all: int) -> NDArray[np.int64]:
    """The starts of up to `n` strings in the window, one by one; moves past them."""
    length_at = struct.Struct(cursor.part.prefix + "Q").unpack_from
    view, pos, end = cursor.view, cursor.pos, cursor.end
    starts = array.array("q")
    while len(starts) < n and pos < window_end:
        if pos + 8 > end or (next_pos := pos + 8 + length_at(view, pos)[0]) > end:
            cursor.pos = pos
            cursor.at = f"string {n_all - n + len(starts)} of {cursor.at}"
            cursor.string()  # raises the error
        starts.append(pos)
        pos = next_pos
    cursor.pos = pos
    return np.frombuffer(starts, np.int64) if starts else np.empty(0, np.int64)

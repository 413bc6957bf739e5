"""Packed weights that cannot be kept: which others are, and what the warning says."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ggmlpy.backends.cpu.packed_cache import (
    DIGEST_BYTES,
    HEADER_BYTES,
    KeptWeight,
    PackedCache,
    PackedCacheWarning,
)

A, B, C = ("a" * 40, "b" * 40, "c" * 40)
OWN_FOLDER = "GGMLPY_CACHE_DIR names a folder that this user alone can write to"
with_modes = pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")


def weight(n_bytes: int) -> KeptWeight:
    return KeptWeight(np.ones(n_bytes, np.uint8), bytes(DIGEST_BYTES))


def kept(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "packed").glob("*.w") if path.is_file()}


def warned(cache: PackedCache, weights: dict[str, KeptWeight]) -> str:
    """The one warning as these are kept, which has the line of the user's program."""
    with pytest.warns(PackedCacheWarning) as caught:
        cache.put_all(weights)
    (warning,) = caught
    assert warning.filename == __file__
    return str(warning.message)


def text(folder: Path, reason: str, remedy: str) -> str:
    return (
        f"packed weights cannot all be kept in {folder / 'packed'}: {reason}."
        f" Each start packs again what is not kept, unless {remedy}"
    )


def test_of_more_than_is_allowed_the_first_that_fit_are_kept(tmp_path: Path) -> None:
    weights = {A: weight(2_000_000), B: weight(800_000), C: weight(500_000)}
    cache = PackedCache(1_500_000, tmp_path)
    said = warned(cache, weights)
    reason = "they take 0.004 GB, 0.0015 are allowed"  # 3.31 MB, rounded up
    assert said == text(tmp_path, reason, "GGMLPY_PACKED_CACHE is 0.004 or more")
    assert kept(tmp_path) == {B, C}
    PackedCache(4_000_000, tmp_path).put_all(weights)
    assert kept(tmp_path) == {A, B, C}


def test_a_weight_has_no_room_beside_those_in_use(tmp_path: Path) -> None:
    cache = PackedCache(HEADER_BYTES + 3_000_000, tmp_path)
    cache.put_all({A: weight(2_000_000)})
    mapped = cache.get(A, 2_000_000)
    said = warned(cache, {B: weight(1_100_000), C: weight(900_000)})
    assert "they take 0.005 GB, 0.003004096 are allowed" in said  # 4.01 MB
    assert kept(tmp_path) == {A, C}
    del mapped


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_smaller_weights_are_kept_on_a_disk_without_room_for_a_larger_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def with_little_room(descriptor: int) -> None:
        if os.fstat(descriptor).st_size > HEADER_BYTES + 100:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", with_little_room)
    said = warned(PackedCache(10**8, tmp_path), {A: weight(101), B: weight(100), C: weight(102)})
    remedy = "its disk has room, or GGMLPY_CACHE_DIR names a folder on another one"
    assert said == text(tmp_path, os.strerror(code), remedy)
    assert kept(tmp_path) == {B}


@pytest.mark.skipif(sys.platform == "win32", reason="permission is denied there")
def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "packed" / f"{A}.w"
    blocked.mkdir(parents=True)
    said = warned(PackedCache(10**8, tmp_path), {A: weight(1), B: weight(1)})
    reason = f"{blocked}: {os.strerror(errno.EISDIR)}"
    assert said == text(tmp_path, reason, "what is there is removed")
    assert kept(tmp_path) == {B}


def test_a_file_in_the_place_of_the_folder_is_to_be_removed(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(b"")
    said = warned(PackedCache(10**8, tmp_path), {A: weight(1)})
    assert said == text(tmp_path, "it is not a folder", "what is there is removed")


def of_another_user(monkeypatch: pytest.MonkeyPatch) -> str:
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    return f"it belongs to user {other - 1}, and this process runs as user {other}"


def read_only(monkeypatch: pytest.MonkeyPatch) -> str:
    real = os.open

    def refusing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system", path)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refusing)
    return "Read-only file system"


@with_modes
@pytest.mark.parametrize("forbid", [of_another_user, read_only])
def test_a_folder_that_this_user_cannot_write_to_needs_another_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forbid: Callable[[pytest.MonkeyPatch], str],
) -> None:
    (tmp_path / "packed").mkdir(0o700)
    reason = forbid(monkeypatch)
    said = warned(PackedCache(10**8, tmp_path), {A: weight(1)})
    assert said == text(tmp_path, reason, OWN_FOLDER)

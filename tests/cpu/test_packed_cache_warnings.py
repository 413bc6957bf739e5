"""Packed weights that cannot be kept: which others are, and what the warning says."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ggmlpy.backends.cpu import packed_cache
from ggmlpy.backends.cpu.packed_cache import (
    DIGEST_BYTES,
    HEADER_BYTES,
    KeptWeight,
    PackedCache,
    PackedCacheWarning,
    cache_from_environment,
)
from ggmlpy.common.progress import listening

A, B, C = ("a" * 40, "b" * 40, "c" * 40)
OWN_FOLDER = "folder of PackedCache is a folder that this user alone can write to"
OTHER_DISK = "the disk has room or folder of PackedCache is on another one"
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
    assert said == text(tmp_path, reason, "max_bytes of PackedCache is 4000000 or more")
    assert kept(tmp_path) == {B, C}
    PackedCache(4_000_000, tmp_path).put_all(weights)
    assert kept(tmp_path) == {A, B, C}


def in_environment(folder: Path, setting: str, monkeypatch: pytest.MonkeyPatch) -> PackedCache:
    """That of GGMLPY_PACKED_CACHE in the cache folder."""
    monkeypatch.setattr(packed_cache, "default_folder", lambda: folder)
    cache = cache_from_environment(setting)
    assert cache is not None
    return cache


def test_a_limit_of_the_environment_is_changed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {A: weight(2_000_000), B: weight(800_000), C: weight(500_000)}
    said = warned(in_environment(tmp_path, "0.0015", monkeypatch), weights)
    reason = "they take 0.004 GB, 0.0015 are allowed"
    assert said == text(tmp_path, reason, "GGMLPY_PACKED_CACHE is 0.004 or more")
    in_environment(tmp_path, "0.004", monkeypatch).put_all(weights)
    assert kept(tmp_path) == {A, B, C}


def test_a_weight_has_no_room_beside_those_in_use(tmp_path: Path) -> None:
    cache = PackedCache(HEADER_BYTES + 3_000_000, tmp_path)
    cache.put_all({A: weight(2_000_000)})
    mapped = cache.get(A, 2_000_000)
    said = warned(cache, {B: weight(1_100_000), C: weight(900_000)})
    assert "they take 0.005 GB, 0.003004096 are allowed" in said  # 4.01 MB
    assert kept(tmp_path) == {A, C}
    del mapped


def with_room_for(n_bytes: int, code: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A disk that has room for each weight of up to `n_bytes`, else fails with `code`; the sizes
    that are written."""
    written = []

    def fsync(descriptor: int) -> None:
        written.append(os.fstat(descriptor).st_size - HEADER_BYTES)
        if written[-1] > n_bytes:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    return written


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_only_smaller_weights_are_tried_on_a_disk_without_room_for_a_larger_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    written = with_room_for(100, code, monkeypatch)
    weights = dict(zip("abcdef", map(weight, (103, 103, 102, 104, 100, 99)), strict=True))
    said = warned(PackedCache(10**8, tmp_path), {40 * key: w for key, w in weights.items()})
    assert said == text(tmp_path, os.strerror(code), OTHER_DISK)
    assert kept(tmp_path) == {40 * "e", 40 * "f"}
    assert written == [103, 102, 100, 99]


def test_a_disk_that_fails_otherwise_is_tried_with_each_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = with_room_for(0, errno.EIO, monkeypatch)
    warned(PackedCache(10**8, tmp_path), {A: weight(100), B: weight(100)})
    assert written == [100, 100]


def test_a_limit_and_a_disk_that_are_too_small_make_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room_for(0, errno.ENOSPC, monkeypatch)
    cache = in_environment(tmp_path, "0.0015", monkeypatch)
    said = warned(cache, {A: weight(2_000_000), B: weight(800_000)})
    reason = f"they take 0.003 GB, 0.0015 are allowed; {os.strerror(errno.ENOSPC)}"
    disk = "the disk has room or GGMLPY_CACHE_DIR is on another one"
    assert said == text(tmp_path, reason, f"GGMLPY_PACKED_CACHE is 0.003 or more, and {disk}")
    assert kept(tmp_path) == set()


def test_the_share_that_is_kept_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_room_for(HEADER_BYTES, errno.ENOSPC, monkeypatch)
    shares = []
    with listening(lambda work, share: shares.append(share)):
        warned(
            PackedCache(10**6, tmp_path),
            {A: weight(5 * HEADER_BYTES), B: weight(HEADER_BYTES), C: weight(10**6)},
        )
    assert shares == [0, 0, 2 / 8]  # of what the limit allows


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

"""Kept digests count for the same files only, and only where no one else can have written them."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ggmlpy.common.open_file import FileStamp
from ggmlpy.gguf.kept_digests import KeptDigests

DIGEST = "0123456789abcdef" * 4
FIRST = FileStamp("/models/m-1.gguf", 1000, 10**18, 10**18 + 1, 77, 5)
FILES = [FIRST, replace(FIRST, path="/models/m-\udcff.gguf", inode=78)]


def only_file(folder: Path) -> Path:
    (path,) = (folder / "weights").iterdir()
    return path


def test_a_digest_is_kept_until_a_file_changes(tmp_path: Path) -> None:
    kept = KeptDigests(tmp_path)
    assert kept.get(FILES) is None
    kept.put(FILES, DIGEST)
    assert KeptDigests(tmp_path).get(FILES) == DIGEST
    changes: list[dict[str, Any]] = [
        {"path": "/other"}, {"n_bytes": 1001}, {"mtime_ns": 10**18 + 1}, {"ctime_ns": 3},
        {"inode": 1}, {"device": 6},
    ]  # fmt: skip
    for change in changes:
        assert kept.get([FIRST, replace(FILES[1], **change)]) is None, change
        assert kept.get([replace(FIRST, **change), FILES[1]]) is None, change
    assert kept.get(FILES[:1]) is None
    kept.put(FILES[:1], DIGEST[::-1])  # in its place: one entry a path
    assert kept.get(FILES[:1]) == DIGEST[::-1]
    assert len(list((tmp_path / "weights").iterdir())) == 1


@pytest.mark.parametrize("time_of", ["mtime_ns", "ctime_ns"])
def test_files_that_were_changed_just_now_are_not_kept(tmp_path: Path, time_of: str) -> None:
    """They may be changed again without another time."""
    kept = KeptDigests(tmp_path)
    changed: dict[str, Any] = {time_of: time.time_ns()}
    kept.put([replace(FIRST, **changed), FIRST], DIGEST)
    assert not (tmp_path / "weights").exists()


def test_what_is_damaged_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    kept = KeptDigests(tmp_path)
    kept.put(FILES, DIGEST)
    path = only_file(tmp_path)
    good = path.read_bytes()
    files = json.loads(good)["files"]
    for bad in (
        good[:-1], b"", b"\xff", b"[]", b"3", b"{}", b"[" * 100_000,
        *(json.dumps({"files": files, "digest": d}).encode() for d in (3, "", DIGEST[:-1], None)),
    ):  # fmt: skip
        path.write_bytes(bad)
        assert kept.get(FILES) is None, bad[:40]
    path.write_bytes(good)
    assert kept.get(FILES) == DIGEST


@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")
def test_what_others_can_write_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptDigests(tmp_path)
    kept.put(FILES, DIGEST)
    for mode, digest in ((0o620, None), (0o602, None), (0o644, DIGEST)):
        only_file(tmp_path).chmod(mode)
        assert kept.get(FILES) == digest, oct(mode)
    monkeypatch.setattr(os, "geteuid", lambda: only_file(tmp_path).stat().st_uid + 1)
    assert kept.get(FILES) is None


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = KeptDigests(tmp_path / "file")
    kept.put(FILES, DIGEST)
    assert kept.get(FILES) is None


@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")
def test_the_folder_is_for_the_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        KeptDigests(tmp_path).put(FILES, DIGEST)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "weights").stat().st_mode) == 0o700
    assert stat.S_IMODE(only_file(tmp_path).stat().st_mode) == 0o600


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes in folders there")
@pytest.mark.parametrize("what", ["pipe", "link"])
def test_a_pipe_or_a_link_in_a_files_place_counts_as_absent(tmp_path: Path, what: str) -> None:
    kept = KeptDigests(tmp_path)
    kept.put(FILES, DIGEST)
    path = only_file(tmp_path)
    path.rename(tmp_path / "moved")
    if what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "moved")
    assert kept.get(FILES) is None
    kept.put(FILES, DIGEST)
    assert kept.get(FILES) == DIGEST
    assert path.is_file()
    assert not path.is_symlink()


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_linked_folder_is_not_used(tmp_path: Path) -> None:
    KeptDigests(tmp_path).put(FILES, DIGEST)
    (tmp_path / "weights").rename(tmp_path / "moved")
    (tmp_path / "weights").symlink_to(tmp_path / "moved")
    assert KeptDigests(tmp_path).get(FILES) is None

"""Files of the user's own folder: whole or not there, no longer than allowed, and no leftovers.

Owners, modes, links and pipes are tested where they matter: tests/cpu/test_cache.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ggmlpy.common.own_folder import OwnFolder


def test_a_file_is_read_up_to_the_allowed_length(tmp_path: Path) -> None:
    with OwnFolder.opened(tmp_path / "a" / "b", make=True) as folder:
        folder.write("file", b"12345")
        assert folder.read("file", 5) == b"12345"
        with pytest.raises(OSError, match="longer than 4 bytes"):
            folder.read("file", 4)
        with pytest.raises(FileNotFoundError):
            folder.read("other", 5)


def test_a_folder_is_made_only_if_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), OwnFolder.opened(tmp_path / "none") as folder:
        folder.read("file", 5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("step", ["fdopen", "replace"])
def test_a_write_that_ends_early_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: type[BaseException]
) -> None:
    real = getattr(os, step)

    def interrupted(first: Any, *more: Any, **named: Any) -> None:
        if step == "fdopen":  # written, but not yet in its place
            real(first, *more, **named).close()
        raise error

    with OwnFolder.opened(tmp_path / "own", make=True) as folder:
        folder.write("file", b"old")
        with monkeypatch.context() as patched:
            patched.setattr(os, step, interrupted)
            with pytest.raises(error):
                folder.write("file", b"new")
        assert folder.read("file", 5) == b"old"
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists descriptors")
def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with OwnFolder.opened(tmp_path / "own", make=True) as folder:
        folder.write("file", b"12345")
        (tmp_path / "own" / "folder").mkdir()
        for name, max_bytes in (("file", 5), ("file", 4), ("folder", 5), ("none", 5)):
            try:
                folder.read(name, max_bytes)
            except OSError:
                assert (name, max_bytes) != ("file", 5)
    assert len(list(Path("/proc/self/fd").iterdir())) == before

"""Files of the user's own folder: whole or not there, no longer than allowed, and no leftovers.

Owners, modes, links and pipes are tested where they matter: tests/cpu/test_cache.py.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from ggmlpy.common import mapped_file
from ggmlpy.common.mapped_file import map_file
from ggmlpy.common.own_folder import OwnFolder
from ggmlpy.graph.buffer import address_of

lists_descriptors = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="only Linux lists descriptors"
)


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


@lists_descriptors
def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = n_descriptors()
    with OwnFolder.opened(tmp_path / "own", make=True) as folder:
        folder.write("file", b"12345")
        (tmp_path / "own" / "folder").mkdir()
        for name, max_bytes in (("file", 5), ("file", 4), ("folder", 5), ("none", 5)):
            try:
                folder.read(name, max_bytes)
            except OSError:
                assert (name, max_bytes) != ("file", 5)
    assert n_descriptors() == before


def n_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(params=["system", "python"])
def mapped_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "system" and not mapped_file._CALLS_SYSTEM:
        pytest.skip("files are mapped by Python here")
    monkeypatch.setattr(mapped_file, "_CALLS_SYSTEM", request.param == "system")


@pytest.mark.usefixtures("mapped_by")
def test_a_mapped_file_stays_as_it_is(tmp_path: Path) -> None:
    with OwnFolder.opened(tmp_path / "own", make=True) as folder:
        folder.write("file", b"12345")
        content = folder.map("file")
        folder.write("file", b"67890")
        folder.remove("file")
    part = content[1:]
    assert not part.flags.writeable
    del content
    assert part.tobytes() == b"2345"


@pytest.mark.usefixtures("mapped_by")
def test_machine_code_changes_a_mapped_file_for_this_process_only(tmp_path: Path) -> None:
    with OwnFolder.opened(tmp_path / "own", make=True) as folder:
        folder.write("file", b"12345")
        content, other = folder.map("file"), folder.map("file")
        ctypes.memset(address_of(content), ord("7"), 2)
        assert folder.read("file", 5) == b"12345"
    assert content.tobytes() == b"77345"
    assert other.tobytes() == b"12345"


@pytest.mark.usefixtures("mapped_by")
def test_an_empty_file_cannot_be_mapped(tmp_path: Path) -> None:
    with OwnFolder.opened(tmp_path / "own", make=True) as folder:
        folder.write("file", b"")
        with pytest.raises(OSError, match="empty"):
            folder.map("file")


def test_no_memory_to_map_a_file_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    with (tmp_path / "file").open("rb") as file, pytest.raises(OSError):
        map_file(file.fileno(), 1 << 62)


@pytest.mark.parametrize("n_bytes", [6, 1 << 64])
def test_to_python_a_file_that_has_shrunk_is_an_os_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_bytes: int
) -> None:
    monkeypatch.setattr(mapped_file, "_CALLS_SYSTEM", False)
    (tmp_path / "file").write_bytes(b"12345")
    with (tmp_path / "file").open("rb") as file, pytest.raises(OSError, match=r"mmap|large"):
        map_file(file.fileno(), n_bytes)


@lists_descriptors
def test_mapped_files_keep_no_descriptors_and_are_unmapped(tmp_path: Path) -> None:
    def n_mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(tmp_path))

    before = n_descriptors()
    with OwnFolder.opened(tmp_path / "own", make=True) as folder:
        for i in range(50):
            folder.write(f"{i}", bytes(5))
        mapped = [folder.map(f"{i}") for i in range(50)]
    assert n_descriptors() == before
    assert n_mapped() == len(mapped)
    del mapped
    assert n_mapped() == 0

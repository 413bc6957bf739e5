"""Which objects of the kernel cache are dropped, and which files are left alone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ggmlpy.backends.cpu import cache as cache_module
from ggmlpy.backends.cpu.cache import Cache
from ggmlpy.common.own_folder import OwnFolder

DAY_S = 24 * 3600
with_owners = pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")


def key(i: int) -> str:
    return f"{i:040x}"


def filled(folder: Path, ages: list[float], n_bytes: int = 100) -> Cache:
    """A cache whose object i was used for the last time `ages[i]` days ago."""
    cache = Cache(folder)
    for i, days in enumerate(ages):
        cache.put(key(i), bytes(n_bytes))
        age(cache.path(key(i)), days)
    return cache


def age(path: Path, days: float) -> None:
    then = time.time() - days * DAY_S
    os.utime(path, (then, then))


def left(cache: Cache) -> set[int]:
    return {int(path.stem, 16) for path in cache.folder.iterdir() if path.suffix == ".o"}


def test_what_was_not_used_for_long_is_dropped(tmp_path: Path) -> None:
    cache = filled(tmp_path, [0, 1, 59, 61, 1000, -1])
    cache.drop_unused()
    assert left(cache) == {0, 1, 2, 5}


def test_reading_is_use(tmp_path: Path) -> None:
    cache = filled(tmp_path, [61, 61, 61])
    assert len(cache.get_all([key(0), key(2)])) == 2
    cache.drop_unused()
    assert left(cache) == {0, 2}


@pytest.mark.parametrize(("days", "noted"), [(0.9, False), (1.1, True), (-2, False)])
def test_use_is_noted_once_a_day(tmp_path: Path, days: float, noted: bool) -> None:
    cache = filled(tmp_path, [days])
    before = cache.path(key(0)).stat().st_mtime
    assert cache.get(key(0)) is not None
    after = cache.path(key(0)).stat().st_mtime
    assert (after != before) == noted
    assert not noted or abs(after - time.time()) < 60


def test_a_use_that_cannot_be_noted_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system for reading only."""

    def refused(*args: object, **kwargs: object) -> None:
        raise OSError(30, "Read-only file system")

    cache = filled(tmp_path, [5])
    monkeypatch.setattr(os, "utime", refused)
    assert cache.get(key(0)) == bytes(100)


def test_of_too_many_the_longest_unused_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = filled(tmp_path, [3, 1, 4, 0.5, 5, 9])
    size = cache.path(key(0)).stat().st_size
    monkeypatch.setattr(cache_module, "_TOTAL_BYTES", 3 * size)
    cache.drop_unused()
    assert left(cache) == {3, 1, 0}
    cache.drop_unused()
    assert left(cache) == {3, 1, 0}


def test_there_is_room_for_every_kernel_of_every_level() -> None:
    """As of 2026 these are 2,000 objects of 12,000 bytes."""
    assert cache_module._TOTAL_BYTES > 8 * 2000 * 12_000


def test_objects_of_earlier_versions_are_dropped_too(tmp_path: Path) -> None:
    cache = filled(tmp_path, [61])
    cache.path(key(0)).write_bytes(b"ggmlpy object 1\n" + bytes(50))
    age(cache.path(key(0)), 61)
    cache.drop_unused()
    assert left(cache) == set()


def test_what_a_killed_process_left_is_dropped_after_a_day(tmp_path: Path) -> None:
    cache = filled(tmp_path, [0])
    with OwnFolder.opened(cache.folder) as folder:
        for name, days in (("0123456789abcdef.tmp", 2), ("0123456789abcde0.tmp", 0.5)):
            folder.write(name, b"half")
            age(cache.folder / name, days)
    cache.drop_unused()
    assert {path.name for path in cache.folder.iterdir()} == {
        f"{key(0)}.o",
        "0123456789abcde0.tmp",
    }


def test_files_that_are_not_ours_are_left(tmp_path: Path) -> None:
    """The folder may be one that the user names, with files of other programs in it."""
    cache = filled(tmp_path, [0])
    names = ("main.o", "notes.txt", f"{key(1)}.obj", f"{key(2)}.o.bak", f"x{key(3)}.o", "a.tmp")
    for name in names:
        (cache.folder / name).write_bytes(b"ggmlpy object 2\n")
    (cache.folder / f"{key(4)}.o").write_bytes(b"\x7fELF, somebody else's")
    (cache.folder / f"{key(5)}.o").mkdir()
    for path in cache.folder.iterdir():
        age(path, 1000)
    before = {path.name for path in cache.folder.iterdir()} - {f"{key(0)}.o"}
    cache.drop_unused()
    assert {path.name for path in cache.folder.iterdir()} == before


@with_owners
def test_links_are_neither_followed_nor_removed(tmp_path: Path) -> None:
    cache = filled(tmp_path / "own", [0])
    other = filled(tmp_path / "other", [1000])
    cache.path(key(9)).symlink_to(other.path(key(0)))
    cache.drop_unused()
    assert cache.path(key(9)).is_symlink()
    assert other.path(key(0)).exists()


@with_owners
def test_files_of_another_user_are_left(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    cache = filled(tmp_path, [1000, 1000])
    os.chown(cache.path(key(0)), 12345, -1)
    cache.drop_unused()
    assert left(cache) == {0}


@with_owners
def test_in_a_folder_that_is_not_the_users_nothing_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = filled(tmp_path, [1000])
    cache.folder.chmod(stat.S_IRWXU | stat.S_IRWXO)
    monkeypatch.setattr(os, "fchmod", lambda folder, mode: None)
    cache.drop_unused()
    assert left(cache) == {0}


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    Cache(tmp_path / "none").drop_unused()
    assert not (tmp_path / "none").exists()


def test_a_file_that_cannot_be_removed_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, unlink = filled(tmp_path, [1000, 1000]), os.unlink

    def refusing(name: str, **options: int) -> None:
        if name.startswith(key(0)):
            raise PermissionError(13, "Permission denied")
        unlink(name, **options)

    monkeypatch.setattr(os, "unlink", refusing)
    cache.drop_unused()
    assert left(cache) == {0}


def test_several_at_once_are_no_error(tmp_path: Path) -> None:
    """Threads that drop, and one that stores and reads; then processes."""
    cache = filled(tmp_path, [1000] * 100)
    errors: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for n in range(8):
                cache.drop_unused()
                cache.put(key(1000 + i * 100 + n), b"new")
                assert cache.get(key(1000 + i * 100 + n)) == b"new"
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert left(cache) == {1000 + i * 100 + n for i in range(3) for n in range(8)}
    for path in cache.folder.iterdir():
        age(path, 1000)
    code = (
        "from pathlib import Path; from ggmlpy.backends.cpu.cache import Cache;"
        f"Cache(Path({str(tmp_path)!r})).drop_unused()"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert left(cache) == set()

"""The cache of compiled code: what is kept, what is damaged, and what someone else put there."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from ggmlpy.backends.cpu.cache import Cache

with_owners = pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")


def test_what_was_put_comes_back(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.get("key") is None
    cache.put("key", b"code")
    cache.put("key", b"newer code")
    assert cache.get("key") == b"newer code"
    assert Cache(tmp_path).get("key") == b"newer code"
    assert [path.name for path in cache.folder.iterdir()] == ["key.o"]


def test_empty_code_is_code(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("key", b"")
    assert cache.get("key") == b""


@pytest.mark.parametrize("length", [0, 1, 15, 16, 47, 48, 50])
def test_a_truncated_file_counts_as_absent(tmp_path: Path, length: int) -> None:
    cache = Cache(tmp_path)
    cache.put("key", b"code")
    whole = cache.path("key").read_bytes()
    assert len(whole) == 52
    cache.path("key").write_bytes(whole[:length])
    assert cache.get("key") is None


def test_any_flipped_bit_counts_as_absent(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("key", b"code")
    whole = cache.path("key").read_bytes()
    for i in range(len(whole)):
        cache.path("key").write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        assert cache.get("key") is None, i


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    cache = Cache(blocked)
    cache.put("key", b"code")
    assert cache.get("key") is None


def test_a_file_that_cannot_be_replaced_is_no_error_and_leaves_no_litter(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.path("key").mkdir(parents=True)
    (cache.path("key") / "occupied").write_text("")
    cache.put("key", b"code")
    assert cache.get("key") is None
    assert [path.name for path in cache.folder.iterdir()] == ["key.o"]


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr("ggmlpy.common.own_folder._FOLDER", None)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    cache = Cache()
    cache.put("key", b"code")
    assert cache.get("key") is None


def test_an_object_under_the_name_of_another_counts_as_absent(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("one", b"code of one")
    shutil.copy(cache.path("one"), cache.path("other"))
    assert cache.get_all(["one", "other", "none"]) == {"one": b"code of one"}


def modes(*paths: Path) -> list[int]:
    return [stat.S_IMODE(path.stat().st_mode) for path in paths]


@with_owners
def test_what_is_made_is_for_the_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache = Cache(tmp_path / "made")
        cache.put("key", b"code")
    finally:
        os.umask(before)
    assert modes(cache.folder, cache.path("key")) == [0o700, 0o600]


@with_owners
def test_a_folder_that_others_may_read_is_used_as_it_is(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("key", b"code")
    cache.folder.chmod(0o755)
    assert cache.get("key") == b"code"
    assert modes(cache.folder) == [0o755]


@with_owners
@pytest.mark.parametrize("mode", [0o775, 0o777, 0o1777, 0o702])
def test_a_folder_that_others_may_write_to_is_closed(tmp_path: Path, mode: int) -> None:
    """As an earlier version made it under a loose umask. What the user put there is the user's."""
    cache = Cache(tmp_path)
    cache.put("own", b"code")
    cache.put("open", b"code")
    cache.path("open").chmod(0o666)  # anyone may have written it
    cache.folder.chmod(mode)
    assert cache.get_all(["own", "open"]) == {"own": b"code"}
    assert modes(cache.folder) == [0o700]


@with_owners
def test_a_folder_that_cannot_be_closed_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system without modes."""
    cache = Cache(tmp_path)
    cache.put("key", b"code")
    cache.folder.chmod(0o777)
    monkeypatch.setattr(os, "fchmod", lambda folder, mode: None)
    assert cache.get("key") is None
    cache.put("key", b"newer code")
    assert "others may write to it (mode 0777" in str(cache.problem)


def belongs_to_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root can give files away; elsewhere this process becomes the other one."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)


@with_owners
def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever one is: root that runs in a user's home, or a user of a folder for all."""
    cache = Cache(tmp_path)
    cache.put("key", b"code")
    belongs_to_another(cache.folder, monkeypatch)
    assert cache.get("key") is None
    cache.put("other", b"code")
    assert not cache.path("other").exists()
    assert "it belongs to user" in str(cache.problem)


@with_owners
def test_a_file_of_another_user_counts_as_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    cache = Cache(tmp_path)
    cache.put("key", b"code")
    belongs_to_another(cache.path("key"), monkeypatch)
    assert cache.get("key") is None
    cache.put("key", b"own code")
    assert cache.get("key") == b"own code"


@with_owners
def test_nothing_is_reached_by_a_link(tmp_path: Path) -> None:
    real, linked = Cache(tmp_path / "real"), Cache(tmp_path / "linked")
    for key in ("key", "other"):
        real.put(key, b"code")
    real.path("other").unlink()
    real.path("other").symlink_to(real.path("key"))
    os.mkfifo(real.path("pipe"))  # which nobody waits for
    real.path("folder").mkdir()
    assert real.get_all(["key", "other", "pipe", "folder"]) == {"key": b"code"}
    linked.folder.parent.mkdir()
    linked.folder.symlink_to(real.folder)
    assert linked.get("key") is None
    linked.put("new", b"code")
    assert "it is a link" in str(linked.problem)
    assert not real.path("new").exists()


@with_owners
def test_a_folder_that_is_put_in_its_place_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others may write to the folder above, they can move this one away."""
    tmp_path.chmod(0o777)
    cache = Cache(tmp_path)
    cache.put("key", b"code")
    cache.folder.rename(tmp_path / "away")
    shutil.copytree(tmp_path / "away", cache.folder)
    belongs_to_another(cache.folder, monkeypatch)
    assert cache.get("key") is None

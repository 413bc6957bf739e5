from __future__ import annotations

from pathlib import Path

import pytest

from ggmlpy.backends.cpu.cache import Cache


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
    monkeypatch.setattr("ggmlpy.backends.cpu.cache._FOLDER", None)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    cache = Cache()
    cache.put("key", b"code")
    assert cache.get("key") is None

"""Files of a hub: found, downloaded, cut and resumed, refused."""

from __future__ import annotations

import errno
import hashlib
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import ggmlpy
from ggmlpy.errors import ArgumentError, DownloadError, MissingFile, MissingPackage
from ggmlpy.hub import transfer
from ggmlpy.hub.fetch import model_of_repo, model_of_url
from tests.hub.stand_in import StandIn

CONTENT = random.Random(1).randbytes(300_001)


def partials(folder: Path) -> list[Path]:
    return list(folder.rglob("*.incomplete"))


@pytest.fixture
def one(hub: StandIn) -> StandIn:
    """A repository with one model."""
    hub.repos["a/b"] = {"README.md": b"#", "m-Q8_0.gguf": CONTENT}
    return hub


def test_a_model_comes_once(one: StandIn, tmp_path: Path) -> None:
    path = model_of_repo("a/b")
    assert path.read_bytes() == CONTENT
    assert path.name == "m-Q8_0.gguf"
    assert path.is_relative_to(tmp_path / "cache" / "models--a--b" / "snapshots")
    assert model_of_repo("a/b:q8_0") == path
    assert model_of_repo("a/b", "*.gguf", offline=True) == path
    assert [sent for sent, _ in one.sent].count(one.sent[0][0]) == 1
    assert not partials(tmp_path)


def test_all_parts_of_a_split_model(hub: StandIn) -> None:
    names = [f"q/m-Q4_K_M-0000{i}-of-00002.gguf" for i in (1, 2)]
    hub.repos["a/b"] = {name: name.encode() for name in names}
    path = model_of_repo("a/b")
    assert path.name == "m-Q4_K_M-00001-of-00002.gguf"
    assert path.with_name("m-Q4_K_M-00002-of-00002.gguf").read_bytes() == names[1].encode()


def test_into_a_folder_with_other_files(one: StandIn, tmp_path: Path) -> None:
    path = model_of_repo("a/b", more_files=["READ*"], local_dir=tmp_path / "here")
    assert path == tmp_path / "here" / "m-Q8_0.gguf"
    assert path.read_bytes() == CONTENT
    assert (tmp_path / "here" / "README.md").read_bytes() == b"#"


def test_cut_connections_are_resumed(one: StandIn) -> None:
    one.cuts = [100_000, 1, 50_000]
    assert model_of_repo("a/b").read_bytes() == CONTENT
    begins = [asked for _, asked in one.sent]
    assert begins == [None, "bytes=100000-", "bytes=100001-", "bytes=150001-"]


def test_a_server_that_is_busy_is_asked_again(one: StandIn) -> None:
    one.statuses = [503, 429, 500]
    assert model_of_repo("a/b").read_bytes() == CONTENT


def test_a_server_without_ranges_sends_all_again(one: StandIn) -> None:
    one.cuts, one.ranges = [200_000], False
    assert model_of_repo("a/b").read_bytes() == CONTENT


def test_a_later_process_resumes(one: StandIn, tmp_path: Path) -> None:
    one.cuts = [120_000] + [0] * 5
    with pytest.raises(DownloadError, match=r"m-Q8_0.gguf: the download stopped after 120.0 kB"):
        model_of_repo("a/b")
    (partial,) = partials(tmp_path)
    assert partial.read_bytes() == CONTENT[:120_000]
    one.sent.clear()
    assert model_of_repo("a/b").read_bytes() == CONTENT
    assert [asked for _, asked in one.sent] == ["bytes=120000-"]


@pytest.mark.parametrize("kept", [b"x" * 1000, b"x" * 300_001, b"x" * 400_000])
def test_a_damaged_rest_is_not_used(one: StandIn, tmp_path: Path, kept: bytes) -> None:
    etag = hashlib.sha256(CONTENT).hexdigest()
    partial = tmp_path / "cache" / "models--a--b" / "blobs" / f"{etag}.incomplete"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(kept)
    assert model_of_repo("a/b").read_bytes() == CONTENT
    assert not partials(tmp_path)


def test_an_interrupt_keeps_what_has_arrived(one: StandIn, tmp_path: Path) -> None:
    def interrupt(what: str, share: float) -> None:
        if share > 0:
            raise KeyboardInterrupt

    one.cuts = [150_000]
    with pytest.raises(KeyboardInterrupt), ggmlpy.listening(interrupt):
        model_of_repo("a/b")
    assert 0 < partials(tmp_path)[0].stat().st_size < len(CONTENT)
    assert model_of_repo("a/b").read_bytes() == CONTENT


def test_progress_is_told(one: StandIn) -> None:
    told: list[tuple[str, float]] = []
    one.cuts = [len(CONTENT) // 2]
    with ggmlpy.listening(lambda what, share: told.append((what, share))):
        model_of_repo("a/b")
    assert {what for what, _ in told} == {"downloading m-Q8_0.gguf, 300.0 kB"}
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


def test_what_is_missing_is_named(one: StandIn) -> None:
    with pytest.raises(
        MissingFile, match=r"a/c: there is no such repository at .* or it is private"
    ):
        model_of_repo("a/c")
    with pytest.raises(MissingFile, match=r"a/c: there is no such repository .*(status 404)"):
        model_of_repo("a/c", token="hf_any")
    with pytest.raises(MissingFile, match=r'quantization "Q2_K", there are Q8_0'):
        model_of_repo("a/b:Q2_K")
    with pytest.raises(MissingFile, match=r'no file matches "x.gguf"; there are m-Q8_0.gguf'):
        model_of_repo("a/b", "x.gguf")
    with pytest.raises(ArgumentError, match=r"names a quantization"):
        model_of_repo("a/b:Q8_0", "m-Q8_0.gguf")


def test_a_gated_repository_says_what_to_do(one: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    one.gated.add("a/b")
    for token, status in ((None, 401), ("hf_wrong", 403)):
        with pytest.raises(DownloadError, match=rf"granted at {one.url}/a/b.*HF_TOKEN.*{status}"):
            model_of_repo("a/b", token=token)
    assert model_of_repo("a/b", token=one.token).read_bytes() == CONTENT
    monkeypatch.setenv("HF_TOKEN", one.token)
    assert model_of_repo("a/b").read_bytes() == CONTENT


def test_refused_in_the_middle(one: StandIn) -> None:
    one.statuses = [403]
    with pytest.raises(DownloadError, match=r"m-Q8_0.gguf: the hub refuses access .status 403"):
        model_of_repo("a/b")


def test_no_hub_and_no_copy(one: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        DownloadError, match=r"a/b: the hub at http://127.0.0.1:9 cannot be reached"
    ):
        model_of_repo("a/b")
    with pytest.raises(MissingFile, match=r"a/b: the cache in .* has no copy of it, and --offline"):
        model_of_repo("a/b", offline=True)


def test_no_hub_and_a_copy(one: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_of_repo("a/b")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.warns(UserWarning, match=r"a/b: .* cannot be reached .*: the copy in the cache"):
        assert model_of_repo("a/b") == path
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert model_of_repo("a/b") == path


def test_too_little_space_is_seen_before(one: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match=r"300.0 kB are to be downloaded, .* only 1.0 kB free"):
        model_of_repo("a/b")
    assert not one.sent


def test_a_disk_that_becomes_full(
    one: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*args: Any) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(transfer, "_stream", full)
    with pytest.raises(
        DownloadError, match=r"m-Q8_0.gguf: the disk of .* is full: it has 300.0 kB"
    ):
        model_of_repo("a/b")


def test_a_cache_that_cannot_be_written(one: StandIn, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match=r"file.* cannot be written: "):
        model_of_repo("a/b", cache_dir=tmp_path / "file")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", None)
    with pytest.raises(MissingPackage, match=r"pip install 'ggmlpy\[hub\]'"):
        model_of_repo("a/b")


# --- URLs ---


def test_a_model_by_its_url(hub: StandIn, tmp_path: Path) -> None:
    hub.repos["plain"] = {"x/m.gguf": CONTENT}
    hub.cuts = [1000]
    path = model_of_url(f"{hub.url}/x/m.gguf?download=true")
    assert path.read_bytes() == CONTENT
    assert path.is_relative_to(tmp_path / "own")
    n_sent = len(hub.sent)
    assert model_of_url(f"{hub.url}/x/m.gguf?download=true") == path
    assert model_of_url(f"{hub.url}/x/m.gguf?download=true", offline=True) == path
    assert len(hub.sent) == n_sent == 2
    hub.repos["plain"] = {"x/m.gguf": CONTENT[:-1]}  # another version
    assert model_of_url(f"{hub.url}/x/m.gguf?download=true").read_bytes() == CONTENT[:-1]


def test_a_split_model_by_its_url(hub: StandIn) -> None:
    hub.repos["plain"] = {f"m-0000{i}-of-00002.gguf": bytes([i]) * 9 for i in (1, 2)}
    path = model_of_url(f"{hub.url}/m-00001-of-00002.gguf")
    assert path.with_name("m-00002-of-00002.gguf").read_bytes() == b"\2" * 9


def test_urls_that_give_nothing(hub: StandIn) -> None:
    with pytest.raises(MissingFile, match=r"m.gguf: there is no such file at http://127"):
        model_of_url(f"{hub.url}/m.gguf")
    with pytest.raises(DownloadError, match=r"http://127.0.0.1:9/m.gguf: "):
        model_of_url("http://127.0.0.1:9/m.gguf")
    with pytest.raises(MissingFile, match=r"not downloaded before"):
        model_of_url(f"{hub.url}/m.gguf", offline=True)
    for url in ("ftp://x/m.gguf", "m.gguf", "http://x/"):
        with pytest.raises(ArgumentError, match=r"is no URL of a file"):
            model_of_url(url)

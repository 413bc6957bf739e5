"""The cache of packed weights: what is found again, what is not trusted, what is dropped."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ggmlpy
from ggmlpy.backends.cpu import backend, packing
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.jit import Jit
from ggmlpy.backends.cpu.packed_cache import (
    DIGEST_BYTES,
    HEADER_BYTES,
    KeptWeight,
    PackedCache,
    PackedCacheWarning,
    cache_from_environment,
)
from ggmlpy.backends.cpu.packing import Keeping, PackedWeights
from ggmlpy.backends.cpu.pieces import checksum
from ggmlpy.common.progress import listening
from ggmlpy.errors import ArgumentError, BackendError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.buffer import address_of
from ggmlpy.graph.quants import Bytes
from ggmlpy.graph.tensor import Tensor, from_bytes
from ggmlpy.graph.types import TYPES
from ggmlpy.models.weights import Weights
from ggmlpy.runtime.context import Context
from tests.cpu import test_packing
from tests.cpu.test_packing import addresses, format_of, packed_at_once, random_weight
from tests.gguf_builder import gguf_bytes

DAY_S = 24 * 3600
K, M = 1024, 970  # packed, a little more than the MiB of the smallest that is kept
Q8_0 = format_of("q8_0")
with_links = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
with_modes = pytest.mark.skipif(sys.platform == "win32", reason="files have no modes there")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file with two weights of one shape."""
    path = tmp_path / "w.gguf"
    write_model(path, seed=0)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def write_model(path: Path, seed: int) -> None:
    weights = {
        f"{name}.weight": ("q8_0", (K, M), random_weight("q8_0", (K, M), 2 * seed + i).tobytes())
        for i, name in enumerate("ab")
    }
    path.write_bytes(gguf_bytes({}, weights))


def weight_of(path: Path, name: str = "a") -> Tensor:
    return Weights(GGUFFile.open(path)).take(f"{name}.weight", K, M)


class Packing:
    """Q8_0, and whether anything was packed, before which `begins` is called."""

    def __init__(self, begins: Callable[[], None]) -> None:
        self.begins = begins
        self.has_packed = False
        self.entry = Q8_0.entry
        self.packed_bytes = Q8_0.packed_bytes

    def pieces(self, weight: Tensor, out: int) -> NDArray[np.void]:
        self.begins()
        self.has_packed = True
        return Q8_0.pieces(weight, out)


def load(
    weight: Tensor,
    folder: Path,
    *,
    max_bytes: int = 10**8,
    code: str = "code",
    begins: Callable[[], None] = lambda: None,
) -> tuple[Bytes, bool]:
    """The packed weight, and whether it was packed now."""
    assert weight.place is not None
    weights = PackedWeights(Keeping(PackedCache(max_bytes, folder), lambda entry: code))
    packing = Packing(begins)
    packed = weights.get(weight, weight.place, packing)
    weights.make(2, addresses(weights.entries))
    assert packed.address % 64 == 0
    assert np.array_equal(packed.data, packed_at_once(weight, Q8_0))
    return packed.data, packing.has_packed


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "packed").iterdir()) if (folder / "packed").is_dir() else []


def test_what_one_start_packs_the_next_one_maps(model: Path, folder: Path) -> None:
    for name in "ab":
        assert load(weight_of(model, name), folder)[1]
    assert len(kept(folder)) == 2
    for name in "ab":
        data, is_packed_now = load(weight_of(model, name), folder)
        assert not is_packed_now
        assert not data.flags.writeable


def test_another_file_is_packed_anew(model: Path, folder: Path, tmp_path: Path) -> None:
    load(weight_of(model), folder)
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(model.read_bytes())
    assert load(weight_of(copy), folder)[1]


@with_links
def test_a_file_is_the_same_by_each_path_that_leads_to_it(
    model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(weight_of(model), folder)
    monkeypatch.chdir(tmp_path)
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    for path in (Path(model.name), Path("..", tmp_path.name, model.name), link):
        assert not load(weight_of(path), folder)[1]
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(model.read_bytes())
    link.unlink()
    link.symlink_to(copy)
    assert load(weight_of(link), folder)[1]


def test_a_file_that_was_written_to_is_packed_anew(model: Path, folder: Path) -> None:
    """`load` compares with what the file has now."""
    load(weight_of(model), folder)
    status = model.stat()
    write_model(model, seed=1)
    os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert model.stat().st_size == status.st_size
    assert load(weight_of(model), folder)[1]


def test_code_that_packs_otherwise_does_so(model: Path, folder: Path) -> None:
    load(weight_of(model), folder)
    assert load(weight_of(model), folder, code="other")[1]
    assert not load(weight_of(model), folder)[1]


def test_of_a_file_written_to_after_it_was_opened_nothing_is_kept(
    model: Path, folder: Path
) -> None:
    weight = weight_of(model)
    os.utime(model, (1, 1))
    assert load(weight, folder)[1]
    assert kept(folder) == []


def test_of_a_file_written_to_while_it_is_packed_nothing_is_kept(model: Path, folder: Path) -> None:
    assert load(weight_of(model), folder, begins=lambda: os.utime(model, (1, 1)))[1]
    assert kept(folder) == []


def test_only_large_weights_in_files_are_kept(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(random_weight("q8_0", (K, M)), folder)
    assert kept(folder) == []
    monkeypatch.setattr(packing, "_KEPT_BYTES", Q8_0.packed_bytes(weight_of(model)) + 1)
    load(weight_of(model), folder)
    assert kept(folder) == []


def with_bit(content: bytes, at: int) -> bytes:
    """The highest bit of a byte is another."""
    return content[:at] + bytes([content[at] ^ 0x80]) + content[at + 1 :]


def with_words_swapped(content: bytes) -> bytes:
    words = np.frombuffer(content, np.int64).copy()
    first = HEADER_BYTES // 8
    (other,) = np.flatnonzero(words[first:] != words[first])[:1] + first
    words[[first, other]] = words[[other, first]]
    return words.tobytes()


DAMAGES = ["nothing left", "short", "long", "header", "digest", "another's", "first word"]
DAMAGES += ["last bit", "zeros", "swapped"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_replaced(model: Path, folder: Path, damage: str) -> None:
    """By one with the weight that `load` compares: the damage is not seen in it."""
    load(weight_of(model), folder)
    (path,) = kept(folder)
    content = path.read_bytes()
    zeroed = slice(len(content) // 2, len(content) // 2 + 4096)
    load(weight_of(model, "b"), folder)
    (other,) = set(kept(folder)) - {path}
    path.write_bytes(
        {
            "nothing left": b"",
            "short": content[:-1],
            "long": content + b"\0",
            "header": b"G" + content[1:],
            "digest": with_bit(content, 60),
            "another's": other.read_bytes(),
            "first word": with_bit(content, HEADER_BYTES),
            "last bit": with_bit(content, len(content) - 1),
            "zeros": content[: zeroed.start] + bytes(4096) + content[zeroed.stop :],
            "swapped": with_words_swapped(content),
        }[damage]
    )
    assert load(weight_of(model), folder)[1]
    assert path.read_bytes() == content
    assert not load(weight_of(model), folder)[1]


@pytest.mark.parametrize("n_words", [0, 2, 34, 1022])
def test_sums_are_those_of_the_words_and_of_the_sums_up_to_each(jit: Jit, n_words: int) -> None:
    words = np.random.default_rng(n_words).integers(0, 1 << 64, n_words, np.uint64)
    sums = np.full(4, 7, np.uint64)
    call = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)(jit.load([checksum])[checksum])
    out = address_of(sums) + 8
    assert call(address_of(words), n_words // 2, out, 1, 0) == out + 16
    assert sums.tolist() == [7, words.sum(), words.cumsum().sum(), 7]


# How the SHA-256 begins of what a stored weight of [2, 17, 3] blocks is packed to.
PACKED = {
    "q4_0": "f3defc63b8f23520",
    "q8_0": "0c2289e455e80958",
    "q4_K": "2b4632461c752da5",
    "q6_K": "1039899686f76ade",
    "mxfp4": "b4813b829c33507b",
}


@pytest.mark.parametrize("type", PACKED)
def test_packed_bytes_stay_the_same(type: str) -> None:
    """The key of a kept weight covers the code that packs groups of rows, not how groups are
    arranged: where this is changed on purpose, raise the number in `_MAGIC` of packed_cache.py."""
    format = format_of(type)
    k, m, n = 2 * format.block, 17, 3
    n_bytes = TYPES[type].row_bytes(k) * m * n
    stored = (np.arange(n_bytes, dtype=np.uint64) * 2654435761 >> 24).astype(np.uint8)
    got = test_packing.packed(from_bytes(stored, type, (k, m, n)), format, 1).data
    assert hashlib.sha256(got.tobytes()).hexdigest()[:16] == PACKED[type]


@with_modes
def test_a_file_that_others_may_write_to_is_not_used(model: Path, folder: Path) -> None:
    load(weight_of(model), folder)
    kept(folder)[0].chmod(0o666)
    assert load(weight_of(model), folder)[1]


@pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be removed there")
def test_a_mapped_weight_outlives_its_file(model: Path, folder: Path) -> None:
    load(weight_of(model), folder)
    weight = weight_of(model)
    data, _ = load(weight, folder)
    kept(folder)[0].unlink()
    assert np.array_equal(data, packed_at_once(weight, Q8_0))


def test_what_is_more_than_may_be_kept_is_not(model: Path, folder: Path, told: list[str]) -> None:
    n_bytes = HEADER_BYTES + Q8_0.packed_bytes(weight_of(model))
    with pytest.warns(PackedCacheWarning, match=r"take 0\.002 GB, 0\.001\d+ are allowed"):
        load(weight_of(model), folder, max_bytes=n_bytes - 1)
    assert kept(folder) == []
    assert "keeping packed weights" not in told
    load(weight_of(model), folder, max_bytes=n_bytes)
    assert len(kept(folder)) == 1


def test_an_interrupt_leaves_no_part_of_a_file(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    weight = weight_of(model)
    with pytest.raises(KeyboardInterrupt):
        load(weight, folder)
    assert kept(folder) == []


def age(path: Path, days: float) -> None:
    then = time.time() - days * DAY_S
    os.utime(path, (then, then))


def in_cache(folder: Path, ages: dict[str, float]) -> PackedCache:
    """A cache of files with 100 bytes, used for the last time so many days ago, in which there is
    room for three and an empty weight."""
    cache = PackedCache(3 * 100 + HEADER_BYTES, folder)
    cache.folder.mkdir(0o700, parents=True)
    for name, days in ages.items():
        (cache.folder / name).write_bytes(bytes(100))
        age(cache.folder / name, days)
    return cache


def dropped(cache: PackedCache, ages: dict[str, float]) -> set[str]:
    cache.put_all({"f" * 40: KeptWeight(np.empty(0, np.uint8), bytes(DIGEST_BYTES))})
    return ages.keys() - {path.name for path in cache.folder.iterdir()}


def names(days: list[float]) -> dict[str, float]:
    return {f"{i:040x}.w": age for i, age in enumerate(days)}


def test_what_was_not_used_for_30_days_is_dropped(folder: Path) -> None:
    files = names([29, 31, 1])
    assert dropped(in_cache(folder, files), files) == {f"{1:040x}.w"}


def test_the_longest_unused_make_room(folder: Path) -> None:
    files = names([4, 2, 5, 1, 3])
    assert dropped(in_cache(folder, files), files) == {f"{0:040x}.w", f"{2:040x}.w"}


def test_of_other_files_only_those_left_by_a_killed_process_are_dropped(folder: Path) -> None:
    old, new = f"{1:016x}.tmp", f"{2:016x}.tmp"
    files = {old: 0.1, new: 0.01, "notes.txt": 100}
    assert dropped(in_cache(folder, files), files) == {old}


def test_what_another_process_writes_counts(folder: Path) -> None:
    files = names([1, 2, 3]) | {f"{1:016x}.tmp": 0.01}
    assert dropped(in_cache(folder, files), files) == {f"{2:040x}.w"}


def in_use(path: Path) -> PackedCache:
    """A cache with one file, of 1 byte, that is used for as long as what `get` returned."""
    cache = PackedCache(2 * HEADER_BYTES + 1, path)
    cache.put_all({"e" * 40: KeptWeight(np.ones(1, np.uint8), bytes(DIGEST_BYTES))})
    return cache


def test_what_is_mapped_is_not_dropped(folder: Path) -> None:
    cache = in_use(folder)
    weight = cache.get("e" * 40, 1)
    assert weight is not None
    files = names([1]) | {f"{'e' * 40}.w": 100}
    (folder / "packed" / f"{0:040x}.w").write_bytes(bytes(100))
    for name, days in files.items():
        age(folder / "packed" / name, days)
    assert dropped(cache, files) == {f"{0:040x}.w"}
    del weight
    age(folder / "packed" / f"{'e' * 40}.w", 100)
    assert dropped(cache, files) == files.keys()


def test_without_room_beside_what_is_mapped_nothing_is_kept(folder: Path) -> None:
    cache = in_use(folder)
    weight = cache.get("e" * 40, 1)
    more = KeptWeight(np.ones(2, np.uint8), bytes(DIGEST_BYTES))
    with pytest.warns(PackedCacheWarning, match=r"take 0\.001 GB"):
        cache.put_all({"f" * 40: more})
    assert [path.stem for path in kept(folder)] == ["e" * 40]
    cache.put_all({"e" * 40: more})  # takes the place of what is mapped
    assert weight is not None
    assert weight.data.tolist() == [1]


def test_mapping_is_use(model: Path, folder: Path) -> None:
    load(weight_of(model), folder)
    (path,) = kept(folder)
    age(path, 0.1)
    load(weight_of(model), folder)
    assert time.time() - path.stat().st_mtime < 60


@pytest.mark.parametrize("setting", ["x", "-1", "nan", "inf", "1GB"])
def test_a_setting_that_is_no_size_is_an_error(setting: str) -> None:
    text = f"^GGMLPY_PACKED_CACHE is '{setting}': it must be a number of GB, 0 or more$"
    with pytest.raises(BackendError, match=text):
        cache_from_environment(setting)


@pytest.mark.parametrize("value", [0, 2, "2", float("nan"), True, Path("packed")])
def test_a_cache_of_a_wrong_type_is_refused_at_once(value: Any) -> None:
    text = r"^CpuBackend: packed_cache is an? \w+: it .* a PackedCache, False for none, or None$"
    with pytest.raises(ArgumentError, match=text):
        CpuBackend(1, packed_cache=value)


@pytest.mark.parametrize("arguments", [(2.5,), ("2",), (1, "packed")])
def test_a_cache_has_a_number_of_bytes_and_a_path(arguments: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^PackedCache: \w+ is an? \w+: it must be a "):
        PackedCache(*arguments)


def test_without_a_setting_nothing_is_kept() -> None:
    assert cache_from_environment("0") is None
    assert cache_from_environment("1.5") is not None


def test_what_the_environment_asks_for_can_be_switched_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "cache_from_environment", lambda: PackedCache(1, folder))
    assert CpuBackend(1)._keeping is not None
    assert CpuBackend(1, packed_cache=False)._keeping is None


@pytest.fixture
def told() -> Iterator[list[str]]:
    works: list[str] = []
    with listening(lambda work, share: works.append(work)):
        yield works


def test_a_model_of_mapped_weights_gives_the_same_bits(
    folder: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_KEPT_BYTES", 0)

    def logits() -> Bytes:
        backend = CpuBackend(2, packed_cache=PackedCache(10**8, folder))
        context = Context.open(ggmlpy.packaged_model(), backend=backend, n_ctx=64)
        return np.asarray(context.decode(list(range(1, 40)))[-1]).view(np.uint8)

    packed = logits()
    assert "keeping packed weights" in told
    n_kept = len(kept(folder))
    told.clear()
    assert np.array_equal(logits(), packed)
    assert "keeping packed weights" not in told
    assert len(kept(folder)) == n_kept > 0

"""Importance matrices: what they count, and their files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from ggmlpy import Llama, from_numpy, ops, packaged_model
from ggmlpy.bench.perplexity import cut
from ggmlpy.errors import FileError, MissingFile, WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.quants import to_float
from ggmlpy.quantize import Imatrix, Squares
from ggmlpy.quantize.collect import Collector, collect, losses
from ggmlpy.sched.compute import backends_for
from ggmlpy.sched.executable import Executable
from tests.gguf_builder import build_gguf
from tests.quantize import peer


@pytest.fixture(scope="module")
def measured() -> tuple[Imatrix, list[list[int]]]:
    """The matrix of the packaged model on a text, and the text's chunks."""
    with Llama(packaged_model(), n_ctx=peer.N_CTX, n_threads=2) as llm:
        tokens = llm.tokenizer.encode(peer.TEXT, add_bos=True)
        chunks = cut(tokens, peer.N_CTX, -1, llm.tokenizer.bos_id).tokens
        before = llm.logits(chunks[1])
        collector = Collector(with_output=True)
        seen = []
        collect(llm, chunks, collector, lambda i, logits: seen.append((i, logits)))
        np.testing.assert_array_equal(seen[1][1], before)
        np.testing.assert_array_equal(llm.logits(chunks[1]), before)
        assert [i for i, _ in seen] == list(range(len(chunks)))
        loss = losses(seen[0][1], chunks[0], 3)
        p = np.exp(seen[0][1][3:-1].astype(np.float64))
        p /= p.sum(axis=1, keepdims=True)
        expected = [-np.log(row[t]) for row, t in zip(p, chunks[0][4:], strict=True)]
        np.testing.assert_allclose(loss, expected, rtol=1e-6)
    return collector.imatrix("text.txt", peer.N_CTX), chunks


def test_sums_are_llama_cpps(measured: tuple[Imatrix, list[list[int]]]) -> None:
    """But for the roundings of its inputs to q8_0, as those of ours."""
    imatrix, chunks = measured
    recorded = peer.recorded()["imatrix"]
    assert imatrix.n_chunks == recorded["chunks"] == len(chunks)
    assert imatrix.chunk_size == peer.N_CTX
    assert imatrix.entries.keys() == recorded["sums"].keys()
    for name, (total, count) in recorded["sums"].items():
        entry = imatrix.entries[name]
        assert entry.counts.tolist() == [count]
        assert entry.sums.sum() == pytest.approx(total, rel=2e-3), name


def test_sums_of_the_first_layer(measured: tuple[Imatrix, list[list[int]]]) -> None:
    """Against the definition: the inputs are normed embeddings."""
    imatrix, chunks = measured
    with GGUFFile.open(packaged_model()) as file:
        info = file.tensors["token_embd.weight"]
        table = to_float(info.data.reshape(info.ne[1], -1), info.type)
        norm = to_float(
            file.tensors["blk.0.attn_norm.weight"].data, file.tensors["blk.0.attn_norm.weight"].type
        )
    x = table[np.concatenate(chunks)].astype(np.float64)
    x *= norm / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-5)
    for part in ("attn_q", "attn_k", "attn_v"):
        sums = imatrix.entries[f"blk.0.{part}.weight"].sums
        np.testing.assert_allclose(sums[0], np.square(x).sum(axis=0), rtol=1e-5)


def test_experts_and_matrices() -> None:
    """Rows count for the experts that they are sent to, and in a batch for the matrix of each."""
    experts = from_numpy(peer.uniform(1, (5, 3, 32)))
    x, ids = peer.uniform(2, (18, 2, 32)), (np.arange(36).reshape(18, 2) * 7 % 4).astype(np.int32)
    batched = from_numpy(peer.uniform(3, (2, 3, 32)))
    y = peer.uniform(4, (4, 17, 32))
    few = peer.uniform(5, (15, 32))
    experts.name, batched.name = "blk.0.ffn_up_exps.weight", "blk.0.attn_k_b.weight"
    other = from_numpy(peer.uniform(6, (3, 32)))
    other.name = "other.weight"
    small = from_numpy(peer.uniform(7, (3, 32)))
    small.name = "blk.0.few_rows.weight"
    products = [
        ops.mul_mat_id(experts, from_numpy(x), from_numpy(ids)),
        ops.mul_mat(batched, from_numpy(y)),
        ops.mul_mat(other, from_numpy(y)),
        ops.mul_mat(small, from_numpy(few)),
    ]
    collector = Collector()
    graph = Graph(*products)
    executable = Executable(Graph(*products, *collector.wanted(graph)), backends_for("cpu", 1))
    for _ in range(2):
        executable.run()
        collector.ran(executable)
    entries = collector.imatrix("", 17).entries
    assert entries.keys() == {experts.name, batched.name}
    sums = np.zeros((5, 32))
    for token in range(18):
        for used in range(2):
            sums[ids[token, used]] += 2 * np.square(x[token, used].astype(np.float64))
    np.testing.assert_allclose(entries[experts.name].sums, sums, rtol=1e-6)
    np.testing.assert_array_equal(
        entries[experts.name].counts, 2 * np.bincount(ids.ravel(), minlength=5)
    )
    each = 2 * np.square(y.astype(np.float64)).sum(axis=1)
    by_matrix = np.stack([each[0] + each[2], each[1] + each[3]]).reshape(1, -1)
    np.testing.assert_allclose(entries[batched.name].sums, by_matrix, rtol=1e-6)
    assert entries[batched.name].counts.tolist() == [2 * 4 * 17 // 2]


def example() -> Imatrix:
    sums = (peer.uniform(8, (3, 8)) + np.float32(1)) * np.float32(9)
    one = Squares(sums[:1], np.array([64]))
    return Imatrix(
        {"b": one, "a": Squares(sums, np.array([32, 0, 64]))}, ("first", "second"), 2, 32
    )


@pytest.mark.parametrize("legacy", [False, True])
def test_files(tmp_path: Path, legacy: bool) -> None:
    path, before = tmp_path / "m", example()
    before.save_legacy(path) if legacy else before.save(path)
    after = Imatrix.load(path)
    assert (after.n_chunks, after.is_legacy, after.name) == (2, legacy, str(path))
    assert after.datasets == (("second",) if legacy else ("first", "second"))
    assert list(after.entries) == ["a", "b"]
    for name in "ab":
        mean = before.importance(name)
        assert mean is not None
        found = after.importance(name)
        assert found is not None
        np.testing.assert_allclose(found, mean, rtol=3e-7)
        assert (found[8:16] == 1).all()  # an expert without tokens
    assert after.importance("c") is None
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    total = Imatrix.combined([after, after], 32)
    assert total.n_chunks == 4
    assert total.entries["b"].counts.tolist() == [128]
    summed, mean = total.importance("b"), before.importance("b")
    assert summed is not None and mean is not None
    np.testing.assert_allclose(summed, mean, rtol=1e-6)


def test_legacy_bytes(tmp_path: Path) -> None:
    """Written by hand, as the format is described."""
    path = tmp_path / "m.dat"
    entry = struct.pack("<i1sii3f", 1, b"w", 4, 3, 8.0, 2.0, 0.0)
    path.write_bytes(struct.pack("<i", 1) + entry + struct.pack("<ii4s", 7, 4, b"text"))
    found = Imatrix.load(path)
    assert (found.n_chunks, found.datasets) == (7, ("text",))
    assert found.importance("w").tolist() == [2.0, 0.5, 0.0]  # type: ignore[union-attr]
    path.write_bytes(struct.pack("<i", 1) + entry)  # the rest may be missing
    assert Imatrix.load(path).n_chunks == 0


def test_only() -> None:
    names = ("blk.0.attn_q.weight", "blk.0.ffn_up.weight", "blk.1.ffn_up.weight")
    one = example().entries["b"]
    imatrix = Imatrix(dict.fromkeys(names, one))
    assert list(imatrix.only(include=["ffn", "attn_k"]).entries) == list(names[1:])
    assert list(imatrix.only(exclude=["blk.1", "attn"]).entries) == [names[1]]
    assert list(imatrix.only().entries) == list(names)


def test_damaged_files(tmp_path: Path) -> None:
    path, whole = tmp_path / "m", tmp_path / "whole"
    with pytest.raises(MissingFile, match="there is no such file"):
        Imatrix.load(path)
    for legacy in (False, True):
        example().save_legacy(whole) if legacy else example().save(whole)
        data = whole.read_bytes()
        ends = range(0, len(data) - 12, 7) if legacy else range(0, len(data) - 64, 31)
        for end in ends:
            path.write_bytes(data[:end])
            try:
                Imatrix.load(path)
            except FileError:
                continue
            assert legacy and end > len(data) - 24  # what comes behind the entries may be cut off
    keys = {"imatrix.datasets": ["a"], "imatrix.chunk_count": 1, "imatrix.chunk_size": 8}
    sums, counts = ("f32", (4, 1), bytes(16)), ("f32", (1, 1), bytes(4))
    nan = ("f32", (4, 1), np.full(4, np.nan, np.float32).tobytes())
    for keys_, tensors, message in (
        ({}, {"w.in_sum2": sums, "w.counts": counts}, "imatrix.datasets"),
        (keys, {}, "no tensor"),
        (keys, {"w.in_sum2": sums}, "no counts"),
        (keys, {"w.in_sum2": ("f16", (4, 1), bytes(8)), "w.counts": counts}, "must be f32"),
        (keys, {"w.in_sum2": sums, "w.counts": ("f32", (1, 3), bytes(12))}, "for 3 matrices"),
        (keys, {"w.in_sum2": nan, "w.counts": counts}, "not finite"),
    ):
        with pytest.raises(FileError, match=message):
            Imatrix.load(build_gguf(path, keys_, tensors))
    one = example()
    other = Imatrix({"b": Squares(np.ones((1, 5), np.float32), np.array([1]))})
    with pytest.raises(WeightError, match="of 8 and 5 values"):
        Imatrix.combined([one, other])

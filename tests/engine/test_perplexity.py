"""Perplexity, tasks with answers and comparisons of models, against their definitions."""

from __future__ import annotations

import math
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy import ArgumentError, BadBatch, FileError, Llama, Unsupported
from ggmlpy.bench import choices, kl_divergence
from ggmlpy.bench.perplexity import cut, cut_with_stride, mean_error, perplexity, tokens_of
from tests.engine.perplexity_data import HELLASWAG, multiple_choice_file
from tests.models.tiny import Tiny, write_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", Tiny())


def logprobs(llm: Llama, tokens: list[int]) -> np.ndarray:
    logits = llm.logits(tokens).astype(np.float64)
    found: np.ndarray = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return found


# --- perplexity ---


@pytest.mark.parametrize("n_seq", [1, 3])
@pytest.mark.parametrize("n_ctx", [4, 7, 32])
def test_perplexity_is_its_definition(path: Path, n_seq: int, n_ctx: int) -> None:
    tokens = np.random.default_rng(3).integers(3, 288, 100).tolist()
    chunks = cut(tokens, n_ctx, bos=1)
    assert len(chunks.tokens) == 100 // n_ctx
    with Llama(path, n_ctx_seq=n_ctx, n_seq_max=n_seq, n_ubatch=5) as llm:
        found = list(perplexity(llm, chunks))
    values: list[float] = []
    with Llama(path) as llm:
        for i, estimate in enumerate(found):
            chunk = [1, *tokens[i * n_ctx + 1 : (i + 1) * n_ctx]]
            rows = logprobs(llm, chunk)
            values += [-rows[j, chunk[j + 1]] for j in range(n_ctx // 2, n_ctx - 1)]
            assert estimate.ppl == pytest.approx(math.exp(np.mean(values)), rel=1e-9)
            assert estimate.n_tokens == len(values)
            if len(values) > 1:
                want = np.std(values) / math.sqrt(len(values) - 1)
                assert estimate.mean_error == pytest.approx(want, rel=1e-6)


def test_chunks_and_windows() -> None:
    chunks = cut(range(10), 4)
    assert (chunks.tokens, chunks.starts, chunks.first) == ([[0, 1, 2, 3], [4, 5, 6, 7]], [0, 4], 3)
    assert cut(range(10), 4, 1, bos=99).tokens == [[99, 1, 2, 3]]
    windows = cut_with_stride(range(600), 200, 56)  # 228 tokens, in llama.cpp 256
    assert windows.starts == [0, 56, 112, 168, 224, 280, 336]
    assert windows.first == 200
    assert {len(tokens) for tokens in windows.tokens} == {256}
    scored = [t for tokens in windows.tokens for t in tokens[windows.first :]]
    assert scored == list(range(200, 200 + 7 * 56))  # each once


def test_what_cannot_be_cut_is_told(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"the text has 7 tokens: with chunks of 4 .* least 8"):
        cut(range(7), 4)
    with pytest.raises(ArgumentError, match="n_ctx is 3: a chunk must have at least 4 tokens"):
        cut(range(7), 3)
    with pytest.raises(ArgumentError, match="the stride is 256: it must be above 0 and below 256"):
        cut_with_stride(range(700), 100, 256)
    with pytest.raises(ArgumentError, match="with windows of 256 it must have at least 512"):
        cut_with_stride(range(500), 100, 5)
    ends = write_model(tmp_path / "e.gguf", Tiny(), tokenizer__ggml__add_eos_token=True)
    with Llama(ends) as llm, pytest.raises(Unsupported, match="ends each text with a token"):
        tokens_of(llm, "abc")
    with Llama(path, n_ctx=16) as llm, pytest.raises(BadBatch, match="chunks have 20 tokens"):
        list(perplexity(llm, cut(range(40), 20)))


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=30))
def test_errors_of_means(values: list[float]) -> None:
    found = mean_error(sum(values), sum(v * v for v in values), len(values))
    want = np.std(values, ddof=1) / math.sqrt(len(values))
    assert found == pytest.approx(want, rel=1e-5, abs=1e-5)


# --- tasks ---


def test_answers_are_judged_by_the_mean_of_what_differs(path: Path) -> None:
    task = choices.Task(["the ab", "the b c d", "the"], [False, True, False])
    with Llama(path, n_seq_max=3, n_ctx_seq=64) as llm:
        tokens = [llm.tokenize(text) for text in task.texts]
        shared = choices.n_common_of(tokens)
        assert shared == len(tokens[2])  # all of the last one: its last token is scored
        (found,) = choices.answer(llm, [task])
        for each, mean in zip(tokens, found.means, strict=True):
            rows = logprobs(llm, each)
            first = min(shared, len(each) - 1)
            values = [rows[i - 1, each[i]] for i in range(first, len(each))]
            assert mean == pytest.approx(np.mean(values))
        assert found.choice == int(np.argmax(found.means))
        assert found.is_right == task.right[found.choice]


def test_files_of_tasks() -> None:
    (first, *rest) = choices.read_hellaswag(HELLASWAG)
    assert len(rest) == 9
    assert sum(first.right) == 1
    assert all(text.startswith("Lily saw a big red ball under a tree. ") for text in first.texts)
    tasks = choices.read_multiple_choice(multiple_choice_file())
    assert [sum(task.right) for task in tasks] == [1] * 10
    assert tasks[0].texts[tasks[0].right.index(True)] == first.texts[first.right.index(True)]
    (task,) = choices.read_winogrande('7,"He, and a _, ran.",boy,girl,2\n\n')
    assert task.texts == ["He, and a boy, ran.", "He, and a girl, ran."]
    assert task.heads == ["He, and a boy", "He, and a girl"]
    assert task.right == [False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n0\n1\n2\n3", "the file has 5 lines"),
        ("a\n4\n1\n2\n3\n4", "line 2 is '4': it must be the number"),
        ("", "the file has 0 lines"),
    ],
)
def test_damaged_hellaswag(text: str, message: str) -> None:
    with pytest.raises(FileError, match=message):
        choices.read_hellaswag(text)


@pytest.mark.parametrize("text", ["0,no gap,a,b,1", "0,a _ b,a,b,3", "0,a _ b,a,1", ""])
def test_damaged_winogrande(text: str) -> None:
    with pytest.raises(FileError, match=r"Winogrande: (line 1 must have|the file has no tasks)"):
        choices.read_winogrande(text)


def test_multiple_choice_that_ends_early_or_lies() -> None:
    whole = multiple_choice_file()
    for n in range(0, len(whole) - 1, 7):
        with pytest.raises(FileError, match="multiple choice: "):
            choices.read_multiple_choice(whole[:n])
    one = struct.pack("<III", 1, 8, 2) + b"\xff\xff" + struct.pack("<I", 0)
    with pytest.raises(FileError, match="the question of task 0 is not UTF-8"):
        choices.read_multiple_choice(one)


@given(st.binary(max_size=200))
def test_any_bytes_are_tasks_or_an_error(raw: bytes) -> None:
    with suppress(FileError):
        choices.read_multiple_choice(raw)


def test_tasks_are_drawn_as_by_std_mt19937() -> None:
    draws = choices._Draws()
    assert [draws.next() for _ in range(2)] == [1791095845, 4282876139]  # of a seed of 1
    tasks = [choices.Task([str(i)], [True]) for i in range(7)]
    drawn = choices.choose_hellaswag(tasks, 99)
    assert sorted(t.texts for t in drawn) == [t.texts for t in tasks]
    assert drawn != tasks
    assert choices.choose_others(tasks, 0) == choices.choose_others(tasks, 7) == tasks
    assert len({t.texts[0] for t in choices.choose_others(tasks, 5)}) == 5


def test_wilsons_interval() -> None:
    """Of its definition: where the share is as far away as a normal distribution allows."""
    for share, n in ((0.3, 10), (0.0, 5), (1.0, 4)):
        for bound in choices.wilson(share, n):
            z = abs(share - bound) / math.sqrt(max(bound * (1 - bound), 1e-300) / n)
            assert z == pytest.approx(1.95996398454, rel=1e-6) or bound in (0.0, 1.0)


# --- another model's predictions ---


def rows(seed: int, n: int = 6, n_vocab: int = 11) -> np.ndarray:
    found: np.ndarray = np.random.default_rng(seed).normal(0, 3, (n, n_vocab)).astype(np.float32)
    return found


def base_of(tmp_path: Path, logits: np.ndarray, n_ctx: int = 8) -> kl_divergence.Base:
    n_rows = n_ctx - 1 - n_ctx // 2
    tokens = [[(i * 5 + k) % logits.shape[1] for i in range(n_ctx)] for k in range(2)]
    writer = kl_divergence.BaseWriter(tmp_path / "base", tokens, logits.shape[1])
    for i, row in reversed(list(enumerate(logits))):
        writer.add(i // n_rows, i % n_rows, row)
    writer.close()
    return kl_divergence.Base(tmp_path / "base")


@pytest.mark.parametrize("n_vocab", [11, 12])
def test_saved_log_probabilities_are_near(tmp_path: Path, n_vocab: int) -> None:
    logits = rows(1, n_vocab=n_vocab)
    logits[0, 3] = -40  # far below the others
    base = base_of(tmp_path, logits)
    for i, row in enumerate(logits.astype(np.float64)):
        want = row - np.log(np.exp(row).sum())
        want = np.maximum(want, want.max() - 16)
        np.testing.assert_allclose(base.logprobs(i // 3, i % 3), want, atol=16 / 65535)
    assert kl_divergence.packed(np.zeros(n_vocab, np.float32))[4:].tolist() == [0] * (
        2 * ((n_vocab + 1) // 2)
    )


def test_divergence_is_its_definition(tmp_path: Path) -> None:
    p, q = rows(1), rows(2)
    base = base_of(tmp_path, p)
    found = kl_divergence.Divergence(base)
    for i, row in enumerate(q):
        found.add(i // 3, i % 3, row)
    log_p, log_q = (
        x.astype(np.float64) - np.log(np.exp(x.astype(np.float64)).sum(axis=1, keepdims=True))
        for x in (p, q)
    )
    tokens = [base.chunks[i // 3][5 + i % 3] for i in range(6)]
    kld = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    values = found.statistics()
    assert found.kld == pytest.approx(kld, abs=2e-3)
    assert values["kld"][0] == pytest.approx(kld.mean(), abs=1e-3)
    nll = -np.array([log_q[i, t] for i, t in enumerate(tokens)])
    nll_base = -np.array([log_p[i, t] for i, t in enumerate(tokens)])
    assert values["ppl"][0] == pytest.approx(math.exp(nll.mean()), rel=1e-5)
    assert values["ppl_base"][0] == pytest.approx(math.exp(nll_base.mean()), rel=1e-3)
    assert values["ln_ratio"][0] == pytest.approx((nll - nll_base).mean(), abs=1e-3)
    differences = np.exp(-nll) - np.exp(-nll_base)
    assert values["p_diff"][0] == pytest.approx(differences.mean(), abs=1e-3)
    assert values["rms_p_diff"][0] == pytest.approx(np.sqrt((differences**2).mean()), abs=1e-3)
    assert values["same_top"][0] == np.mean(p.argmax(axis=1) == q.argmax(axis=1))
    assert kl_divergence.percentile([3.0, 1.0, 2.0], 0.25) == 1.5


def test_errors_of_ratios_are_those_of_pairs(tmp_path: Path) -> None:
    """With many tokens: the two models' log-probabilities belong together."""
    found = kl_divergence.Divergence(base_of(tmp_path, rows(1)))
    rng = np.random.default_rng(4)
    found.nll = rng.normal(2, 1, 500).tolist()
    found.nll_base = (np.array(found.nll) + rng.normal(0, 0.1, 500)).tolist()
    found.kld = found.p_diff = rng.normal(0, 1, 500).tolist()
    found.n = 500
    pairs = np.array(found.nll) - np.array(found.nll_base)
    values = found.statistics()
    assert values["ln_ratio"] == pytest.approx(
        (pairs.mean(), pairs.std(ddof=1) / math.sqrt(500)), rel=1e-4
    )
    assert found.correlation() == pytest.approx(np.corrcoef(found.nll, found.nll_base)[0, 1])


def test_damaged_files_of_predictions(tmp_path: Path) -> None:
    base_of(tmp_path, rows(1))
    raw = (tmp_path / "base").read_bytes()
    bad = tmp_path / "bad"
    for n, message in ((7, "no file of predictions"), (len(raw) - 1, "its head asks for")):
        bad.write_bytes(raw[:n])
        with pytest.raises(FileError, match=message):
            kl_divergence.Base(bad)
    bad.write_bytes(raw[:8] + struct.pack("<iii", 8, -11, 2) + raw[20:])
    with pytest.raises(FileError, match="too few to be right"):
        kl_divergence.Base(bad)
    found = kl_divergence.Divergence(kl_divergence.Base(tmp_path / "base"))
    with pytest.raises(ArgumentError, match="of 11 tokens, the model's vocabulary has 12"):
        found.check(12)
    for token in (-1, 10**6):
        bad.write_bytes(raw[:20] + np.int32(token).tobytes() + raw[24:])
        with pytest.raises(FileError, match=rf"the file has tokens .*{token}.*: they must be in 0"):
            kl_divergence.Base(bad)

"""What the benchmarks run and count; never how long it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmlpy.bench import bandwidth, bench
from ggmlpy.bench.bench import (
    BatchedCase,
    BatchedResult,
    Setup,
    SpeedResult,
    SpeedTest,
    backends_used,
    bytes_of_steps,
    kept_bytes,
    measure_batched,
    measure_speed,
    open_context,
    prompt_batches,
    threads_used,
    timed_steps,
    weight_bytes,
)
from ggmlpy.gguf import GGUFFile
from ggmlpy.memory.batch import Batch
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.models.tiny import Tiny, write_model

REFERENCE = Setup(backend="reference")
KV_BYTES = 2 * 2 * 2 * 16 * 2  # of a token in Tiny(): layers, K and V, heads, head size, f16


@pytest.fixture
def file(tmp_path: Path) -> GGUFFile:
    return GGUFFile.open(write_model(tmp_path / "tiny.gguf", Tiny()))


class Watched:
    """Notes what a context runs, and how many cells are in use whenever it is emptied."""

    def __init__(self, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[Batch] = []
        self.n_used: list[int] = []
        decode_batch, clear = context.decode_batch, context.memory.clear

        def noting_decode(batch: Batch) -> Any:
            self.batches.append(batch)
            return decode_batch(batch)

        def noting_clear() -> None:
            self.n_used.append(context.memory.n_used())
            clear()

        monkeypatch.setattr(context, "decode_batch", noting_decode)
        monkeypatch.setattr(context.memory, "clear", noting_clear)


@pytest.mark.parametrize(
    ("unified", "shared", "n_kv", "n_run"),
    [
        (False, False, 3 * (7 + 4), 3 * (7 + 4)),
        (True, False, 3 * (7 + 4), 3 * (7 + 4)),
        (False, True, 3 * 7 + 3 * 4, 7 + 3 * 4),
        (True, True, 7 + 3 * 4, 7 + 3 * 4),
    ],
)
def test_n_kv_is_what_the_memory_holds(
    file: GGUFFile, monkeypatch: pytest.MonkeyPatch,
    unified: bool, shared: bool, n_kv: int, n_run: int,
) -> None:  # fmt: skip
    case = BatchedCase(7, 4, 3, shared)
    n_ctx = case.n_ctx(unified, n_seq_max=4)
    assert n_ctx == (n_kv if unified else 4 * 11)
    context = open_context(
        load_model(file), REFERENCE, n_ctx=n_ctx, n_seq_max=4, kv_unified=unified
    )
    measure_batched(context, case, n_batch=5)  # builds the plans
    watched = Watched(context, monkeypatch)
    result = measure_batched(context, case, n_batch=5)
    assert result.n_kv == case.n_kv(unified) == n_kv
    assert watched.n_used == [0, n_kv]
    assert context.memory.n_used() == 0
    assert sum(map(len, watched.batches)) == n_run
    prompts, steps = watched.batches[:-4], watched.batches[-4:]
    assert all(len(batch) == 5 for batch in prompts[:-1])
    assert [batch.seq_ids for batch in steps] == [[(0,), (1,), (2,)]] * 4
    assert [batch.positions for batch in steps] == [[7 + i] * 3 for i in range(4)]
    assert result.prompt_s > 0
    assert result.generation_s > 0


@pytest.mark.parametrize("shared", [False, True])
def test_batched_rates(shared: bool) -> None:
    result = BatchedResult(BatchedCase(100, 10, 4, shared), n_kv=440, prompt_s=2, generation_s=0.5)
    assert result.prompt_rate == (50 if shared else 200)
    assert result.generation_rate == 80
    assert result.total_s == 2.5
    assert result.rate == 176
    assert BatchedResult(BatchedCase(100, 0, 4), 400, 2, 0).generation_rate == 0


def test_what_does_not_fit(file: GGUFFile) -> None:
    split = open_context(load_model(file), REFERENCE, n_ctx=40, n_seq_max=2).sizes
    assert BatchedCase(16, 4, 2).misfit(split) is None
    assert (
        BatchedCase(16, 5, 1).misfit(split)
        == "21 tokens for each sequence, which has n_ctx_seq = 20"
    )
    assert BatchedCase(1, 1, 3).misfit(split) == "3 sequences, there are 2"
    unified = open_context(
        load_model(file), REFERENCE, n_ctx=40, n_seq_max=2, kv_unified=True
    ).sizes
    assert BatchedCase(36, 4, 1).misfit(unified) is None
    assert BatchedCase(17, 4, 2).misfit(unified) == "42 tokens, n_ctx is 40"
    assert BatchedCase(30, 5, 2, shared=True).misfit(unified) is None


class Built:
    """Notes how many plans were built in each run of what is measured."""

    def __init__(self, context: Context, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.runs: list[int] = []
        run = getattr(bench, name)

        def noting_run(*args: Any) -> Any:
            before = context.n_plans_built
            result = run(*args)
            self.runs.append(context.n_plans_built - before)
            return result

        monkeypatch.setattr(bench, name, noting_run)


@pytest.mark.parametrize("separate", [False, True])
def test_no_case_counts_the_building_of_plans(
    file: GGUFFile, monkeypatch: pytest.MonkeyPatch, separate: bool
) -> None:
    context = open_context(load_model(file), REFERENCE, n_ctx=40, n_seq_max=2)
    built = Built(context, monkeypatch, "_run_batched")
    for case in (BatchedCase(9, 2, 2, separate=separate), BatchedCase(9, 3, 2, separate=separate)):
        measure_batched(context, case, n_batch=100)
    assert len(built.runs) == 3  # the second case has the shapes of the first
    assert built.runs[0] >= 1
    assert built.runs[1:] == [0, 0]


def test_no_sample_counts_the_building_of_plans(
    file: GGUFFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In separate ops more cells are gathered as 300 tokens are written: a shape that no warm-up
    has seen."""
    backends = backends_for("reference")
    context = Context(load_model(file), backends, n_ctx=512, n_ubatch=4, flash_attn=False)
    context.warm_up()
    built = Built(context, monkeypatch, "_run_test")
    result = measure_speed(context, file, SpeedTest(0, 300), n_repeat=2, n_batch=4)
    assert len(result.samples_s) == 2
    assert built.runs[0] == 0  # one step, whose plan `warm_up` has built
    assert built.runs[1] > 0
    assert built.runs[2:] == [0, 0]


def test_one_sequence_writes_after_the_other(
    file: GGUFFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = open_context(load_model(file), REFERENCE, n_ctx=40, n_seq_max=2)
    case = BatchedCase(3, 2, 2, separate=True)
    measure_batched(context, case, n_batch=100)
    watched = Watched(context, monkeypatch)
    result = measure_batched(context, case, n_batch=100)
    assert [batch.seq_ids for batch in watched.batches[1:]] == [[(0,)], [(0,)], [(1,)], [(1,)]]
    assert [batch.positions for batch in watched.batches[1:]] == [[3], [4], [3], [4]]
    assert result.n_kv == watched.n_used[-1] == 10


@pytest.mark.placed
def test_what_ran_is_told(file: GGUFFile) -> None:
    """The tiny model is little work: one thread, unless more were asked for."""
    for n_threads, used in ((None, 1), (2, 2)):
        context = open_context(
            load_model(file), Setup(backend="cpu", n_threads=n_threads), n_ctx=16
        )
        assert backends_used(context) == ["cpu"]
        assert threads_used(context) == used
        result = measure_speed(context, file, SpeedTest(3), n_repeat=1, n_batch=4)
        assert result.n_threads == used
    assert backends_used(open_context(load_model(file), REFERENCE, n_ctx=16)) == ["reference"]


@pytest.mark.parametrize(
    "test", [SpeedTest(9), SpeedTest(0, 3), SpeedTest(0, 3, 5), SpeedTest(9, 2, 5)]
)
def test_a_speed_test_runs_its_tokens_at_its_depth(
    file: GGUFFile, monkeypatch: pytest.MonkeyPatch, test: SpeedTest
) -> None:
    context = open_context(load_model(file), REFERENCE, n_ctx=16)
    watched = Watched(context, monkeypatch)
    result = measure_speed(context, file, test, n_repeat=2, n_batch=4)
    assert len(result.samples_s) == 2
    assert min(result.samples_s) > 0
    last = test.depth + test.n_tokens - 1
    assert watched.batches[-1].positions[-1] == last
    assert watched.n_used.count(last + 1) == 2 + (test.n_generated < 2)  # the warm-up runs one
    n_prefix = sum(len(b) for b in watched.batches if b.positions[0] < test.depth)
    assert n_prefix == test.depth  # once; then what it left is put back
    assert max(map(len, watched.batches)) <= 4
    assert context.memory.n_used() == 0


def test_speed_is_the_mean_of_the_samples() -> None:
    samples_s = (0.5, 0.25, 1.0)
    result = SpeedResult(SpeedTest(n_prompt=10), samples_s, bytes_of_steps=(400, 600))
    rates = 10 / np.array(samples_s)
    assert result.mean_rate == pytest.approx(rates.mean())
    assert result.rate_deviation == pytest.approx(rates.std(ddof=1))
    assert result.bandwidth == pytest.approx(1000 * rates.mean() / 10)
    assert SpeedResult(SpeedTest(1), (0.5,), (1,)).rate_deviation == 0


def test_names_are_llama_benchs() -> None:
    assert SpeedTest(512).name == "pp512"
    assert SpeedTest(0, 128).name == "tg128"
    assert SpeedTest(0, 128, 4096).name == "tg128 @ d4096"
    assert SpeedTest(512, 128).name == "pp512+tg128"


@pytest.mark.parametrize(
    ("model", "n_read"),
    [
        (Tiny(tied=True), lambda sizes: sum(sizes.values())),
        (Tiny(), lambda sizes: sum(sizes.values()) - sizes["token_embd.weight"]),
        (
            Tiny(tied=True, n_expert=4, n_expert_used=1),
            lambda sizes: sum(n // 4 if "_exps." in name else n for name, n in sizes.items()),
        ),
    ],
    ids=["tied", "untied", "experts"],
)
def test_weights_that_a_step_reads(tmp_path: Path, model: Tiny, n_read: Any) -> None:
    file = GGUFFile.open(write_model(tmp_path / "m.gguf", model))
    sizes = {name: info.n_bytes for name, info in file.tensors.items()}
    assert weight_bytes(file, open_context(load_model(file), REFERENCE, n_ctx=8)) == n_read(sizes)


def test_bytes_of_a_test(file: GGUFFile) -> None:
    setup = Setup(backend="reference", n_ubatch=4)
    context = open_context(load_model(file), setup, n_ctx=64)
    weights = weight_bytes(file, context)

    def read(test: SpeedTest) -> int:
        return sum(bytes_of_steps(file, context, test, n_batch=6))

    assert read(SpeedTest(0, 3)) == 3 * weights + (1 + 2 + 3) * KV_BYTES
    assert read(SpeedTest(0, 1, depth=20)) == weights + 21 * KV_BYTES
    # 9 tokens in batches of 6 and 3, which are ubatches of 4, 2 and 3
    assert read(SpeedTest(9)) == 3 * weights + (4 + 6 + 9) * KV_BYTES


def test_windows_and_states_bound_what_is_kept(tmp_path: Path) -> None:
    windowed = Tiny(
        architecture="gemma3", qk_norm=True, post_norms=True, window=8, windowed=(0,), tied=True
    )
    file = GGUFFile.open(write_model(tmp_path / "w.gguf", windowed))
    memory = open_context(load_model(file), REFERENCE, n_ctx=64).memory
    assert kept_bytes(memory, 5) == 5 * KV_BYTES
    assert kept_bytes(memory, 50) == (50 + 8) * KV_BYTES // 2
    hybrid = Tiny(architecture="lfm2", qk_norm=True, convolutions=(0,), tied=True)
    file = GGUFFile.open(write_model(tmp_path / "h.gguf", hybrid))
    memory = open_context(load_model(file), REFERENCE, n_ctx=66, n_seq_max=3).memory
    assert kept_bytes(memory, 5) == 5 * KV_BYTES // 2 + 2 * 64 * 4


def test_prompts_are_cut_into_batches_in_order() -> None:
    batches = prompt_batches([[1, 2, 3], [4, 5, 6]], 4, start=10)
    assert [batch.tokens for batch in batches] == [[1, 2, 3, 4], [5, 6]]
    assert [batch.positions for batch in batches] == [[10, 11, 12, 10], [11, 12]]
    assert [batch.outputs for batch in batches] == [[False, False, True, False], [False, True]]
    assert prompt_batches([[]], 4) == []


def test_steps_go_on_where_each_sequence_is(
    file: GGUFFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = open_context(load_model(file), REFERENCE, n_ctx=32, n_seq_max=2)
    context.decode([1, 2, 3], seq=1)
    watched = Watched(context, monkeypatch)
    assert len(timed_steps(context, [0, 1], 2)) == 2
    assert [batch.positions for batch in watched.batches] == [[0, 3], [1, 4]]
    assert all(all(batch.outputs) for batch in watched.batches)


def test_read_bandwidth_is_that_of_the_best_round(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: Iterator[float] = iter([0.0, 4.0, 10.0, 12.0, 20.0, 23.0])
    monkeypatch.setattr(bandwidth, "perf_counter", lambda: next(ticks))
    assert bandwidth.read_bandwidth(3, n_bytes=3000, n_repeat=3) == 1500
    monkeypatch.undo()
    assert bandwidth.read_bandwidth(2, n_bytes=2**20) > 0

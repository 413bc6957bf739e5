"""The plans of a context: few for any mixture, within the memory that is reserved."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from ggmlpy.memory.batch import Batch
from ggmlpy.memory.layouts import LAYOUTS
from tests.engine.test_streams import ARCHITECTURES, N_SEQ, make


def test_decode_steps_of_all_streams_are_one_ubatch_and_one_plan(tmp_path: Path) -> None:
    run = make(tmp_path, backend="null", n_seq_max=8)
    for step in range(5):
        batch = Batch()
        for s in (3, 0, 7, 1, 2, 6, 5, 4):
            batch.add(5, step, (s,), True)
        run.decode_batch(batch)
    assert run.n_plans_built == 1
    (shape,) = run.plans.plans
    assert shape == run.shapes.decode


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_mixture_runs_in_few_plans(tmp_path: Path, layout: str) -> None:
    run = make(tmp_path, backend="null", n_seq_max=8, n_ubatch=32, layout=layout)
    rng = np.random.default_rng(3)
    for _ in range(60):
        batch = Batch()
        for s in rng.permutation(8)[: rng.integers(1, 9)].tolist():
            n = int(rng.choice((1, 1, 2, 5, 11)))
            batch.add_sequence(s, [7] * n, run.n_past(s), all_outputs=bool(rng.random() < 0.1))
        run.decode_batch(batch)
        for s in range(8):
            if run.n_past(s) > 40 or rng.random() < 0.1:
                run.seq_rm(s)
    assert run.n_plans_built <= 4
    assert set(run.plans.plans) <= set(run.shapes.all())


def test_a_plan_that_was_unused_longest_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention in separate ops has a plan for each number of tokens."""
    monkeypatch.setattr("ggmlpy.runtime.plans.MAX_PLANS", 2)
    run = make(tmp_path, backend="null", n_seq_max=1, flash_attn=False)
    built = []
    for n_tokens in (1, 2, 1, 3, 1, 2):
        run.decode([5] * n_tokens)
        built.append(run.n_plans_built)
    assert built == [1, 2, 2, 3, 3, 4]
    assert [shape.n_tokens for shape in run.plans.plans] == [1, 2]


def test_the_time_of_building_plans_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, backend="null", n_seq_max=1)
    monkeypatch.setattr("ggmlpy.runtime.plans.perf_counter", itertools.count().__next__)
    assert run.plans.build_s == 0
    for n_tokens, build_s in ((1, 1), (2, 2), (1, 2), (3, 2)):
        run.decode([5] * n_tokens)
        assert run.plans.build_s == build_s


@pytest.mark.parametrize("n_ubatch", [1, 2, 3, 7, 16])
def test_n_ubatch_is_never_exceeded(tmp_path: Path, n_ubatch: int) -> None:
    run = make(tmp_path, backend="null", n_seq_max=8, n_ubatch=n_ubatch)
    batch = Batch()
    for s in range(8):
        batch.add_sequence(s, [7] * (1 + s % 4), 0)
    run.decode_batch(batch)
    assert max(shape.n_tokens for shape in run.plans.plans) <= n_ubatch


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n_ubatch", [16, N_SEQ, 80])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_shape_needs_more_memory_than_is_reserved(
    tmp_path: Path, architecture: str, n_ubatch: int, layout: str
) -> None:
    """With flash attention: what is taken with the weights is that of any plan."""
    context = make(
        tmp_path, model=ARCHITECTURES[architecture], n_ubatch=n_ubatch, layout=layout,
        backend="null",
    )  # fmt: skip
    context.load_weights()
    reserved, shapes = context.compute_bytes, context.shapes.all()
    for shape in shapes:
        assert context.plans.get(shape).executable.allocation.arena_bytes
        assert context.compute_bytes == reserved, shape
    assert len(shapes) >= 3

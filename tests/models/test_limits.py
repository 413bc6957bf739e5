"""The longest context that an architecture can have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ggmlpy.errors import Unsupported
from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.models.seeded import write_seeded
from tests.models.seeded_specs import SPECS


@pytest.mark.parametrize("name", ["deepseek32", "hy_v4-indexer", "minimax-m3"])
def test_sparse_attention_is_refused_where_it_would_leave_cells_out(
    tmp_path: Path, name: str
) -> None:
    spec = SPECS[name]
    model = load_model(GGUFFile.open(write_seeded(tmp_path, "m", spec)))
    with pytest.raises(
        Unsupported,
        match=f"n_ctx_seq is 257: a {spec.architecture} model of this file can have at most 256"
        r" tokens a sequence \(longer ones need its sparse attention, which is not supported\)",
    ):
        Context(model, backends_for("null"), n_ctx=257)
    Context(model, backends_for("null"), n_ctx=512, n_seq_max=2)


@pytest.mark.parametrize("name", ["gpt2", "minimax-m3"])
def test_positions_are_limited_where_tokens_were_removed(tmp_path: Path, name: str) -> None:
    """There are cells left then, but no embedding of the position, or too many blocks of cells."""
    model = load_model(GGUFFile.open(write_seeded(tmp_path, "m", SPECS[name])))
    n = model.n_ctx_limit
    assert n is not None
    context = Context(model, backends_for("null"), n_ctx=n)
    context.decode([1] * (n - 2))
    context.seq_rm(0, 1, n // 2)
    context.decode([1])
    context.decode([1])
    with pytest.raises(
        Unsupported,
        match=rf"^the batch has position {n}: a {name} model of this file can have at most {n}"
        rf" \({re.escape(model.limited_by)}\); move what the sequence holds to lower positions",
    ):
        context.decode([1])
    assert context.n_past(0) == n
    if not model.fixed_by:
        context.seq_add(0, n // 2, n, -1)
        context.decode([1])


def test_without_an_indexer_there_is_no_limit(tmp_path: Path) -> None:
    model = load_model(GGUFFile.open(write_seeded(tmp_path, "m", SPECS["hy_v4"])))
    Context(model, backends_for("null"), n_ctx=1024)

"""The longest context that an architecture can have."""

from __future__ import annotations

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


def test_without_an_indexer_there_is_no_limit(tmp_path: Path) -> None:
    model = load_model(GGUFFile.open(write_seeded(tmp_path, "m", SPECS["hy_v4"])))
    Context(model, backends_for("null"), n_ctx=1024)

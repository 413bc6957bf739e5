"""Commands with an encoder-decoder model: what they show and measure of its two parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.preview import build_graph
from tests.cli.conftest import Run
from tests.engine.test_encoder_decoder import seeded
from tests.models.seeded import write_seeded

F32 = 4
N_EMBD, N_FF, N_HEADS, N_VOCAB = 64, 88, 48, 72  # elements; of all heads together
PRODUCTS = 4 * N_EMBD * N_HEADS  # q, k, v and output
FFN = 2 * N_EMBD * N_FF


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeded(tmp_path_factory.mktemp("t5"), "t5", seeded())


def test_the_plan_has_both_parts(run: Run, path: Path) -> None:
    plan = json.loads(run("inspect", path, "--plan", "--json").out)["plan"]
    assert (plan["n_layer"], plan["n_layer_encoder"]) == (2, 3)
    assert plan["memory"] == [
        "layers 0 to 1: K and V (4 heads of 12) of all tokens",
        "layers 0 to 2 of the encoder: K and V (4 heads of 12) of the source",
        "layers 0 to 1 of the decoder: K and V (4 heads of 12) of the source",
    ]
    assert plan["unused_tensors"] == []
    assert "2 layers behind an encoder of 3. T5:" in run("inspect", path, "--plan").out


def test_graphs_of_both_parts(run: Run, path: Path, tiny: Path) -> None:
    model = load_model(GGUFFile.open(path))
    assert model.encoder is not None
    shown = run("graph", "-m", path, "-n", 3)
    assert shown.out == f"{build_graph(model, 3)}\n"
    assert "flash_attn_ext" in shown.out and "pos_bias" in shown.out
    separate = run("graph", "-m", path, "-n", 3, "-fa", "off").out
    assert "flash_attn_ext" not in separate and "cross.kq_soft_max" in separate
    encoder = run("graph", "-m", path, "-n", 3, "--encoder").out
    assert encoder == f"{build_graph(model.encoder, 3)}\n"
    assert "cross.k_stored-1" in encoder and "enc.blk.2.ffn_up.weight" in encoder
    assert "has no encoder apart" in run("graph", "-m", tiny, "--encoder").error
    assert "bucket of distances" in run("graph", "-m", path, "--mixture").error


def test_bench_encodes_prompts(run: Run, path: Path) -> None:
    done = run("bench", "-m", path, "-p", 6, "-n", 3, "-d", "0,5", "-pg", "6,2", "-r", 1, "--json")
    assert "these have no depth" in done.err
    rows = {
        (row["n_prompt"], row["n_gen"], row["n_depth"]): row
        for row in map(json.loads, done.out.splitlines())
    }
    kv = 2 * 2 * N_HEADS  # bytes of K and V of a token in one layer, in f16
    matrices = PRODUCTS + FFN
    cross = 2 * N_EMBD * N_HEADS  # of the encoder K and V, of the decoder q and output
    encoding = F32 * (3 * matrices + 2 * cross) + 6 * 3 * kv
    decoder = F32 * (2 * (matrices + cross) + N_EMBD * N_VOCAB)
    decoding = {n: decoder + 2 * n * kv for n in (1, 5, 6)}
    want = {
        (6, 0, 0): encoding,
        (0, 3, 0): 3 * decoding[1] + 2 * (1 + 2 + 3) * kv,
        (6, 2, 0): encoding + 2 * decoding[6] + 2 * (1 + 2) * kv,
        (0, 3, 5): 3 * decoding[5] + 2 * (1 + 2 + 3) * kv,
    }
    assert set(rows) == set(want)
    small = F32 * 64 * 40  # norms and biases of distances
    for key, row in rows.items():
        n_steps = max(1, key[1] + (key[0] > 0))
        read = row["bandwidth_gbs"] * 1e9 * (key[0] + key[1]) / row["avg_ts"]
        assert want[key] <= read * (1 + 1e-9) <= want[key] + n_steps * small, key


def test_what_cannot_be_measured(run: Run, path: Path) -> None:
    with_depth = run("bench", "-m", path, "-p", 6, "-n", 0, "-d", 5)
    assert "these have no depth, with which only -n can be measured" in with_depth.error
    assert "use bench" in run("batched-bench", "-m", path, "-npp", 8, "-ntg", 4, "-npl", 1).error


def test_generate_answers(run: Run, path: Path) -> None:
    done = run("generate", "-m", path, "-p", "this", "-n", 4, "--temp", 0, "--json")
    row = json.loads(done.out)
    prompt, start = row["prompt_tokens"], 70
    context = Context.open(path, backend="cpu", n_ctx=64)
    context.encode(prompt)
    logits = context.decode([start, *row["tokens"]], all_logits=True)
    assert row["tokens"] == logits[: len(row["tokens"])].argmax(axis=1).tolist()
    assert prompt[-1] == 1 and row["n_prompt"] == len(prompt) + 1

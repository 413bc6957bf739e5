"""What every architecture is asked: the logits of llama.cpp, of a plain forward pass, of any cut.

Models run on inputs filled by hand (by_hand.py) and through the engine's own memory (Context).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import Graph
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.types import F16, F32
from ggmlpy.memory.batch import Batch
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.models.by_hand import ByHand, Group, alone
from tests.models.tiny import Tiny, forward, write_model
from tests.shared import shared_path

TOKENS = [1, 260, 262, 270, 3, 4, 279, 265, 265, 2, 281, 100, 7, 44, 45, 260]
BACKENDS = ["reference", "cpu"]
FLASH = pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "separate ops"])


def repeated_names(graph: Graph) -> list[tuple[str, int]]:
    """Names that several leafs or nodes have, and those that have none."""
    counts = Counter(t.name for t in (*graph.leafs, *graph.nodes))
    counts.pop("token_embd.weight", None)  # two leafs where it is the map to logits too
    return [(name, n) for name, n in counts.items() if n > 1 or not name]


def nmse(got: NDArray[np.float32], want: NDArray[np.float32] | NDArray[np.float64]) -> float:
    """Without the lowest number, which are logits that must not be chosen."""
    wide, counts = want.astype(np.float64), got != np.finfo(np.float32).min
    return float(((got - wide)[counts] ** 2).sum() / (wide[counts] ** 2).sum())


def context(path: Path, backend: str, *, flash_attn: bool = True, n_ubatch: int = 512) -> Context:
    return Context(
        load_model(GGUFFile.open(path)),
        backends_for(backend, 2),
        n_ctx=128,
        n_ubatch=n_ubatch,
        type_k=F32,
        type_v=F32,
        flash_attn=flash_attn,
    )


def check_plain_forward(path: Path, model: Tiny, backend: str, flash_attn: bool) -> None:
    """The whole prompt at once; then in two parts, the second token by token."""
    want = forward(model, TOKENS)
    loaded = load_model(GGUFFile.open(write_model(path, model)))
    unused = [name for name in loaded.weights.unused() if not _known_unused(model, name)]
    assert not unused
    whole = ByHand(loaded, backend, flash_attn).run(alone(TOKENS))
    assert nmse(whole, want) < 1e-10
    run = ByHand(loaded, backend, flash_attn)
    parts = [run.run(alone(TOKENS[:9]))]
    parts += [run.run(alone([token])) for token in TOKENS[9:]]
    assert nmse(np.concatenate(parts), want) < 1e-10
    few = ByHand(loaded, backend, flash_attn).run(alone(TOKENS), outputs=[11, 3])
    assert nmse(few, want[[11, 3]]) < 1e-10


def _known_unused(model: Tiny, name: str) -> bool:
    return not model.ffn_scaled and ".ffn_" in name and name.endswith(".scale")


def check_many_sequences(path: Path, model: Tiny, backend: str, flash_attn: bool) -> None:
    """Four sequences in each ubatch, of lengths alike and apart: as each alone."""
    sequences = [TOKENS, TOKENS[3:] + TOKENS[:3], TOKENS[5:], TOKENS[::-1]]
    run = ByHand(load_model(GGUFFile.open(write_model(path, model))), backend, flash_attn, n_seqs=4)
    done = [0] * 4
    got: list[list[NDArray[np.float32]]] = [[], [], [], []]
    for lengths in ([5, 5, 1, 3], [1, 1, 1, 1], [4, 4, 4, 7]):
        groups: list[Group] = []
        for s, n in enumerate(lengths):
            part = sequences[s][done[s] : done[s] + n]
            if groups and groups[-1].n_each == n:
                groups[-1].tokens.append(part)
            else:
                groups.append(Group(s, [part]))
            done[s] += n
        pieces = np.split(run.run(groups), np.cumsum(lengths)[:-1])
        for s, piece in enumerate(pieces):
            got[s].append(piece)
    for s, tokens in enumerate(sequences):
        assert nmse(np.concatenate(got[s]), forward(model, tokens[: done[s]])) < 1e-10


def check_reference(name: str, backend: str, flash_attn: bool, limit: float) -> None:
    """llama.cpp's logits, by hand, and by the engine at once and token by token."""
    path = shared_path(f"reference/archs/{name}-dense.gguf")
    saved = np.load(shared_path(f"reference/archs/{name}-dense.npz"))
    tokens, want = saved["tokens"].tolist(), saved["logits"]
    by_hand = ByHand(load_model(GGUFFile.open(path)), backend, flash_attn).run(alone(tokens))
    assert nmse(by_hand, want) < limit
    for n_ubatch in (512, 1):
        run = context(path, backend, flash_attn=flash_attn, n_ubatch=n_ubatch)
        assert nmse(run.decode(tokens, all_logits=True), want) < limit


def check_always_the_same(path: Path, model: Tiny, flash_attn: bool) -> None:
    """On cpu bitwise, however the tokens are cut and whatever number of threads runs them."""
    loaded = load_model(GGUFFile.open(write_model(path, model)))

    def run(n_threads: int, n_ubatch: int) -> NDArray[np.float32]:
        engine = Context(
            loaded,
            backends_for("cpu", n_threads),
            n_ctx=128,
            n_ubatch=n_ubatch,
            type_k=F16,
            type_v=F16,
            flash_attn=flash_attn,
        )
        return engine.decode(TOKENS * 2, all_logits=True).copy()

    want = run(1, 512)
    for n_threads, n_ubatch in ((2, 512), (2, 5), (1, 1)):
        np.testing.assert_array_equal(run(n_threads, n_ubatch), want)


def check_engine_sequences(path: Path, model: Tiny, unified: bool) -> None:
    """Sequences of unequal length in the engine, on cpu: bitwise as each alone, and right."""
    loaded = load_model(GGUFFile.open(write_model(path, model)))
    sequences = [TOKENS, TOKENS[5:], TOKENS[3:] + TOKENS[:3], TOKENS[::-1]]

    def make(n_seq_max: int) -> Context:
        return Context(
            loaded,
            backends_for("cpu", 2),
            n_ctx=64 * n_seq_max,
            n_ubatch=16,
            n_seq_max=n_seq_max,
            kv_unified=unified,
            type_k=F32,
            type_v=F32,
        )

    alone_logits = [make(1).decode(tokens, all_logits=True).copy() for tokens in sequences]
    run = make(4)
    done = [0] * 4
    for lengths in ({2: 6, 0: 6, 1: 1}, {3: 16, 1: 4}, {0: 1, 1: 1, 2: 1}, {2: 9, 1: 5, 0: 9}):
        batch = Batch()
        for s, n in lengths.items():
            batch.add_sequence(s, sequences[s][done[s] : done[s] + n], done[s], all_outputs=True)
        got = np.split(run.decode_batch(batch), np.cumsum(list(lengths.values()))[:-1])
        for (s, n), logits in zip(lengths.items(), got, strict=True):
            np.testing.assert_array_equal(logits, alone_logits[s][done[s] : done[s] + n])
            done[s] += n
    assert done == [len(tokens) for tokens in sequences]
    for tokens, logits in zip(sequences, alone_logits, strict=True):
        assert nmse(logits, forward(model, tokens)) < 1e-10

"""What the rotation of quantised K and V changes: logits beside those of K and V in f32.

    python -m benchmarks.kv_rotation                       prints the table of docs/contexts.md
    python -m benchmarks.kv_rotation --write FOLDER        keeps the models that it measures
    python -m benchmarks.kv_rotation --save                writes results/kv_rotation.json too

The weights are those of the packaged model, whose heads have 32 elements. Neighbouring heads are
joined to heads of 64 and 128 without changing what is computed: K and V of several heads are stored
as one, q is zero where it meets the others' keys, and frequency factors keep every head's own
angles. So blocks hold what a trained model stores. Real models of some billion parameters have
channels of K that are much larger than the others, which this one has not. They are synthetic here:
one pair of channels of each head is multiplied by a number in K, and divided by it in q.

Text: stories of the seed that the training held out. The error is the NMSE of all logits.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

import ggmlpy
from benchmarks import report
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.types import type_of
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from ggmlpy.text.tokenizer import Tokenizer
from training.corpus.story import stories
from training.make_corpus import HELD_OUT_SEED

RESULTS = report.RESULTS / "kv_rotation.json"
N_THREADS = 2
TYPES = ("q8_0", "q5_1", "q5_0", "iq4_nl", "q4_1", "q4_0")
Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to write the packaged model: `n_joined` heads as one, channels of K times `outlier`."""

    name: str
    n_joined: int = 1
    outlier: float = 1.0


VARIANTS = (
    Variant("heads-32"),
    Variant("heads-64", 2),
    Variant("heads-128", 4),
    Variant("heads-64-outliers", 2, 16.0),
    Variant("heads-128-outliers", 4, 16.0),
)


def write_variant(path: Path, variant: Variant) -> None:
    """The packaged model in f32, rewritten. It has no vocabulary: tokens are numbers."""
    reader = gguf.GGUFReader(ggmlpy.packaged_model())
    keys = {
        name: reader.fields[f"llama.{name}"].contents()
        for name in (
            "block_count",
            "context_length",
            "embedding_length",
            "feed_forward_length",
            "attention.head_count",
            "attention.head_count_kv",
            "attention.layer_norm_rms_epsilon",
            "rope.freq_base",
            "rope.dimension_count",
            "vocab_size",
        )
    }
    H, Hk, D = keys["attention.head_count"], keys["attention.head_count_kv"], 32
    assert keys["rope.dimension_count"] == D and Hk % variant.n_joined == 0
    D_joined = D * variant.n_joined
    keys["attention.head_count_kv"] = Hk // variant.n_joined
    for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        keys[name] = D_joined
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("tokenizer.ggml.model", "none")
    for name, value in keys.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"llama.{name}", value)
    base = float(keys["rope.freq_base"])
    writer.add_tensor("rope_freqs.weight", _factors(D, D_joined, base))
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, _rewritten(tensor.name, values, (H, Hk, D), variant))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _factors(D: int, D_joined: int, base: float) -> Array:
    """What divides the angles of joined heads, so that they are those of each head."""
    pair = np.arange(D_joined // 2)
    own = base ** (-2.0 * (pair % (D // 2)) / D)
    return (base ** (-2.0 * pair / D_joined) / own).astype(np.float32)


def _rewritten(name: str, values: Array, sizes: tuple[int, int, int], variant: Variant) -> Array:
    H, Hk, D = sizes
    if name.endswith("attn_k.weight"):
        heads = values.reshape(Hk, D, -1).copy()
        heads[:, -2:] *= variant.outlier  # the slowest pair: large channels of real models are slow
        return heads.reshape(values.shape)
    if name.endswith("attn_q.weight"):
        heads = values.reshape(H, D, -1) * np.float32(np.sqrt(variant.n_joined))
        heads[:, -2:] /= variant.outlier
        return _spread(heads, sizes, variant.n_joined)
    if name.endswith("attn_output.weight"):
        heads = values.T.reshape(H, D, -1)
        return np.ascontiguousarray(_spread(heads, sizes, variant.n_joined).T)
    return values


def _spread(heads: Array, sizes: tuple[int, int, int], n_joined: int) -> Array:
    """Each of heads [H, D, E] at its place in a joined head, zeros in the others' places."""
    H, Hk, D = sizes
    found = np.zeros((H, n_joined, D, heads.shape[-1]), np.float32)
    for h in range(H):
        found[h, h // (H // Hk) % n_joined] = heads[h]
    return found.reshape(H * n_joined * D, -1)


def texts(n: int) -> list[list[int]]:
    """The tokens of stories."""
    file = GGUFFile.open(ggmlpy.packaged_model())
    tokenizer = Tokenizer.from_metadata(file.metadata, file.name)
    assert tokenizer.bos_id is not None
    found = (tokenizer.encode(text) for text in stories(n, HELD_OUT_SEED))
    return [
        tokens if tokens[0] == tokenizer.bos_id else [tokenizer.bos_id, *tokens] for tokens in found
    ]


def logits_of(
    model: ggmlpy.models.Model, type: str, kv_rotation: bool | None, prompts: Sequence[list[int]]
) -> Iterator[Array]:
    """The logits of every token of each prompt."""
    context = Context(
        model,
        backends_for("cpu", N_THREADS),
        n_ctx=512,
        type_k=type_of(type),
        type_v=type_of(type),
        kv_rotation=kv_rotation,
    )
    for tokens in prompts:
        context.clear()
        yield context.decode(tokens, all_logits=True).copy()


@dataclass(slots=True)
class Score:
    """Sums over tokens."""

    error: float = 0.0
    energy: float = 0.0
    loss: float = 0.0
    n: int = 0

    def add(self, logits: Array, exact: Array, tokens: list[int]) -> None:
        self.error += float(((logits.astype(np.float64) - exact) ** 2).sum())
        self.energy += float((exact.astype(np.float64) ** 2).sum())
        shifted = logits[:-1].astype(np.float64)
        shifted -= shifted.max(axis=1, keepdims=True)
        log_sums = np.log(np.exp(shifted).sum(axis=1))
        self.loss += float((log_sums - shifted[np.arange(len(tokens) - 1), tokens[1:]]).sum())
        self.n += len(tokens) - 1

    @property
    def nmse(self) -> float:
        return self.error / self.energy

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss / self.n)

    def as_dict(self) -> dict[str, float]:
        return {"nmse": self.nmse, "perplexity": self.perplexity}

    def __str__(self) -> str:
        """`1.2e-04, 1.367`: the error and the perplexity"""
        return f"{self.nmse:.1e}, {self.perplexity:.4f}"


def measure(path: Path, prompts: Sequence[list[int]]) -> Iterator[tuple[str, Score, Score]]:
    """Types of K and V, the score without a rotation, and with it; f32 first."""
    model = load_model(GGUFFile.open(path))
    exact = list(logits_of(model, "f32", None, prompts))
    for type in ("f32", *TYPES):
        scores = []
        for kv_rotation in (False, None if type == "f32" else True):
            score = Score()
            for logits, want, tokens in zip(
                logits_of(model, type, kv_rotation, prompts), exact, prompts, strict=True
            ):
                score.add(logits, want, tokens)
            scores.append(score)
        yield type, scores[0], scores[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stories", type=int, default=20)
    parser.add_argument("--write", type=Path, help="the folder for the models")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args(arguments)
    about = report.about_run(N_THREADS, [])
    prompts = texts(options.stories)
    n_tokens = sum(map(len, prompts))
    print(f"{n_tokens} tokens: NMSE of the logits, perplexity\n")
    print("| model | K and V | as they are | rotated |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for variant in VARIANTS:
            path = (options.write or Path(folder)) / f"{variant.name}.gguf"
            write_variant(path, variant)
            scores = {}
            for type, plain, rotated in measure(path, prompts):
                print(f"| {variant.name} | {type} | {plain} | {rotated} |", flush=True)
                scores[type] = {"plain": plain.as_dict(), "rotated": rotated.as_dict()}
            if options.save:
                entry = {"about": about, "tokens": n_tokens, "scores": scores}
                report.save(RESULTS, variant.name, entry)
    return 0


if __name__ == "__main__":
    sys.exit(main())

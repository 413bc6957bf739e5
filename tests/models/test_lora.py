"""LoRA adapters in the graphs of every architecture: as if merged, and the same bits in any batch.

The models are the tiny ones of test_architectures.py, in f32. A merged model has the weights
W + scale * alpha / r * B A of float64, rounded to f32 once; with an adapter the sum is made of two
products. Both round each sum by a few units of the last place, a relative 1e-7 to 1e-6, which no
layer of these models magnifies by more than a hundred: their squares are below 1e-9 of the logits'.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.peer_logits import N_PROMPT
from ggmlpy.errors import Unsupported
from ggmlpy.gguf import GGUFFile
from ggmlpy.memory.batch import Batch
from ggmlpy.models import load_model
from ggmlpy.models.lora import LoraAdapter
from ggmlpy.runtime.context import Context
from tests.adapters import write_adapter, write_merged
from tests.models.checks import nmse, repeated_names
from tests.models.seeded import write_seeded
from tests.models.seeded_specs import SPECS
from tests.models.test_architectures import SHALLOW, TOKENS, context, in_turn

# Matrices that no product of tokens reads as they are: convolutions, norms of heads, biases of
# distances, factors that are absorbed or applied to parts of tokens, classifiers of pooled texts.
REFUSED = re.compile(
    r".*(shortconv\.conv|conv1d|norm|position_embd|token_types|rel_b|cls\.|per_layer_|attn_[kv]_b|indexer|(hc_attn|hc_ffn|output_hc)_fn|altup_"
    r"|time_mix_(decay_w|[avwg])\d|time_mix_first).*"
)
# Activations of gemma3n are cut at a part of their deviation, where rounding decides: two backends
# differ by 1e-8 with merged weights too.
BOUNDS = {"gemma3n": 1e-6}
# Blocks of hrm_text run several times, with other scales of these each time.
NOT_MERGED = {"hrm_text": r".*attn_(q|output)\.weight"}
LENGTHS = (3, N_PROMPT, 5, 9)  # of sequences with other adapters each; the second one's is `a`


def matrices_of(path: Path) -> list[str]:
    """Those of the file that the model uses."""
    with GGUFFile.open(path) as file:
        leaves = load_model(file).weights.leaves
        names = [name for name, info in file.tensors.items() if info.ne[1] > 1 and name in leaves]
        if "output.weight" not in file.tensors:  # merged, the embedding would change the logits too
            names.remove("token_embd.weight")
        return [name for name in names if name.endswith(".weight")]


def one_of(names: list[str]) -> str:
    return "|".join(map(re.escape, names))


def with_adapters(run: Context, adapters: dict[LoraAdapter, float]) -> NDArray[np.float32]:
    run.clear()
    run.set_lora(adapters, seq=0)
    return in_turn(run)


@pytest.mark.parametrize("name", SHALLOW)
def test_adapters_of_every_architecture(tmp_path: Path, name: str) -> None:
    path = write_seeded(tmp_path, name, SPECS[name])
    names = matrices_of(path)
    left = re.compile(f"{REFUSED.pattern}|{NOT_MERGED.get(name, '^$')}")
    changed = one_of([n for n in names if not left.fullmatch(n)])
    a = write_adapter(tmp_path / "a.gguf", path, seed=1, names=changed)
    b = write_adapter(tmp_path / "b.gguf", path, seed=2, names=changed, rank=3, alpha=0)
    run = context(load_model(GGUFFile.open(path)), n_ubatch=64)
    plain = in_turn(run)
    first, second = run.load_lora(a.path), run.load_lora(b.path)
    np.testing.assert_array_equal(with_adapters(run, {}), plain, "loaded, not used")
    alone = with_adapters(run, {first: 0.5, second: -0.75})
    assert repeated_names(run.last_graph) == []
    assert nmse(alone, plain) > 1e-4
    merged = write_merged(tmp_path / "merged.gguf", path, [(a, 0.5), (b, -0.75)])
    want = in_turn(context(load_model(GGUFFile.open(merged)), n_ubatch=64))
    assert nmse(alone, want) < BOUNDS.get(name, 1e-9)

    among = context(
        run.model, n_ctx=4 * 64, n_ctx_seq=64, n_seq_max=4, n_ubatch=256, kv_layout="unified"
    )
    prompts = Batch()
    adapters: list[dict[LoraAdapter, float]] = [{}, {second: -0.75, first: 0.5}, {first: 1.0}, {}]
    for seq, n in enumerate(LENGTHS):
        among.set_lora(adapters[seq], seq=seq)
        tokens = TOKENS[:N_PROMPT] if seq in (1, 3) else TOKENS[-n:]
        prompts.add_sequence(seq, tokens[:n], 0, all_outputs=True)
    if among.encoder is not None:
        sources = Batch()
        for seq in range(len(LENGTHS)):
            sources.add_sequence(seq, TOKENS[:N_PROMPT], 0)
        among.encode_batch(sources)
    logits = np.split(among.decode_batch(prompts), np.cumsum(LENGTHS)[:-1])
    np.testing.assert_array_equal(logits[1], alone[:N_PROMPT], "among others")
    if among.is_causal:
        np.testing.assert_array_equal(logits[3], plain[: LENGTHS[3]], "others with adapters")
    assert repeated_names(among.last_graph) == []

    for refused in [n for n in names if REFUSED.fullmatch(n)]:
        other = write_adapter(tmp_path / "c.gguf", path, names=re.escape(refused))
        with pytest.raises(Unsupported, match=re.escape(f'"{refused}"')):
            run.load_lora(other.path)

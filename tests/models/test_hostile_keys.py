"""Whatever number a file gives for a hyper-parameter: a typed error, or a model that writes.

One process opens a file for each value, within a limit of memory; it is judged here, line by line.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from ggmlpy import ContextWarning, GgmlpyError, Llama, WeightWarning
from ggmlpy.runtime import context_sizes
from tests.gguf_builder import Typed
from tests.models.tiny import Tiny, write_model

MEMORY_BYTES = 3 << 30  # of addresses: most are those of libraries

QWEN3 = Tiny(architecture="qwen3", n_layer=1, neox=True, qk_norm=True, head_size=16)
MODELS = {
    "llama": Tiny(n_layer=1, n_expert=2, n_expert_used=1, linear_factor=2.0),
    "qwen2": Tiny(architecture="qwen2", n_layer=1, neox=True, yarn_factor=4.0, freq_base=500.0),
    "qwen3": QWEN3,
    "gemma3": Tiny(
        architecture="gemma3", n_layer=2, neox=True, qk_norm=True, post_norms=True, softcap=30.0,
        window=5, windowed=(0,),
    ),
    "lfm2": Tiny(
        architecture="lfm2", n_layer=2, neox=True, qk_norm=True, window=5, convolutions=(0,)
    ),
}  # fmt: skip
COUNTS = (
    "block_count", "context_length", "embedding_length", "feed_forward_length",
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "rope.dimension_count", "rope.scaling.original_context_length",
    "expert_count", "expert_used_count",
)  # fmt: skip
REALS = (
    "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor",
    "rope.scale_linear", "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
)  # fmt: skip
OWN_COUNTS = {
    "gemma3": ("attention.sliding_window", "attention.sliding_window_pattern"),
    "lfm2": ("attention.sliding_window", "shortconv.l_cache"),
}
OWN_REALS = {"gemma3": ("rope.freq_base_swa", "final_logit_softcapping")}
TOKENS = ("bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id")
WHOLE_VALUES = (-1, 0, 2**26, 2**31 - 1, 2**31, 2**32, 2**63 - 1)
REAL_VALUES = (float("nan"), float("inf"), -1.0, 0.0, 1e-300, 1e38)

_I64, _F64 = 11, 12  # type ids of values
_MARK = 0x5EED_0123_4567_89AB


def variants(folder: Path, architecture: str) -> Iterator[tuple[str, Path]]:
    """Files with one number each that is another; the number's key and value."""
    path, marked = folder / "m.gguf", struct.pack("<Iq", _I64, _MARK)
    counts = [f"{architecture}.{key}" for key in (*COUNTS, *OWN_COUNTS.get(architecture, ()))]
    reals = [f"{architecture}.{key}" for key in (*REALS, *OWN_REALS.get(architecture, ()))]
    if architecture == "llama":  # what all architectures have in common
        counts += [f"tokenizer.ggml.{key}" for key in TOKENS]
    for key in (*counts, *reals):
        changed = {key.replace(".", "__"): Typed("i64", _MARK)}
        raw = write_model(path, MODELS[architecture], **changed).read_bytes()
        assert raw.count(marked) == 1
        for value in REAL_VALUES if key in reals else WHOLE_VALUES:
            is_real = isinstance(value, float)
            number = struct.pack("<Id" if is_real else "<Iq", _F64 if is_real else _I64, value)
            path.write_bytes(raw.replace(marked, number))
            yield f"{key} = {value}", path


def outcome(path: Path) -> str:
    """What comes of loading the file and writing a token, on one line."""
    try:
        with Llama(path, backend="reference") as llm:
            llm("", max_tokens=1, temperature=0)
    except GgmlpyError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"untyped {error!r}"
    return "writes"


def main(folder: str) -> None:
    """Print a line for each variant of each model."""
    import resource

    # So that default sizes leave addresses for all else.
    setattr(context_sizes, "physical_memory", lambda: MEMORY_BYTES >> 4)  # noqa: B010
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    warnings.simplefilter("error")
    for known in (ContextWarning, WeightWarning):
        warnings.simplefilter("ignore", known)
    for architecture in MODELS:
        for what, path in variants(Path(folder), architecture):
            print(what, outcome(path).replace("\n", r"\n"), sep=": ")


@pytest.mark.skipif(os.name != "posix", reason="memory cannot be limited on this system")
def test_every_value_of_every_key(tmp_path: Path) -> None:
    program = "import sys; from tests.models.test_hostile_keys import main; main(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert not [line for line in lines if "untyped" in line or r"\n" in line]
    assert len(lines) > len(MODELS) * (
        len(COUNTS) * len(WHOLE_VALUES) + len(REALS) * len(REAL_VALUES)
    )
    assert 50 < sum(line.endswith(": writes") for line in lines) < len(lines) / 2
    for architecture in MODELS:
        key = f"{architecture}.block_count"
        wanted = f'{key} = {2**26}: WeightError: m.gguf: key "{key}" is {2**26}, must be '
        assert wanted in done.stdout
        assert f"{architecture}.context_length = {2**31 - 1}: writes\n" in done.stdout

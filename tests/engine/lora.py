"""A tiny model with three LoRA adapters, and contexts that have them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from ggmlpy.gguf import GGUFFile
from ggmlpy.models import load_model
from ggmlpy.models.lora import LoraAdapter
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.adapters import LINEAR, write_adapter
from tests.models.tiny import Tiny, write_model

N_SEQ = 4
EVERYTHING = rf"{LINEAR}|output\.weight|token_embd\.weight"


def write_files(folder: Path) -> Path:
    """A model in f32, the same quantised, and three adapters of them."""
    path = write_model(folder / "tiny.gguf", Tiny(n_ctx=512))
    write_model(folder / "tiny-q8_0.gguf", Tiny(n_ctx=512, weight_type="q8_0"))
    write_adapter(folder / "0.gguf", path, seed=1, names=EVERYTHING)
    write_adapter(folder / "1.gguf", path, seed=2, rank=3, alpha=0)
    types = ("f16", "bf16")
    write_adapter(folder / "2.gguf", path, seed=3, rank=32, names=EVERYTHING, types=types)
    return folder


def context(
    folder: Path, backends: Any = "cpu", **options: Any
) -> tuple[Context, list[LoraAdapter]]:
    """A context with the three adapters."""
    options = {"n_ctx": 64 * N_SEQ, "n_ctx_seq": 64, "n_seq_max": N_SEQ, **options}
    model = load_model(GGUFFile.open(folder / "tiny.gguf"))
    run = Context(model, backends_for(backends, 2), **options)
    return run, [run.load_lora(folder / f"{i}.gguf") for i in range(3)]


@cache
def shared_context(folder: Path, name: str) -> tuple[Context, list[LoraAdapter]]:
    """The context of this name, which tests and their examples share."""
    return context(folder, n_ubatch=32)

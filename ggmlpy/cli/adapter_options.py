"""Options of LoRA adapters and control vectors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import click

from ggmlpy.cli.groups import group, setting
from ggmlpy.cli.types import FileNames, ScaledFiles, Whole

SECTION = "Adapters"
_Scaled = tuple[Path, float]


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """What changes the weights of a model, or the results of its layers."""

    lora: tuple[list[Path], ...] = setting(
        (),
        "--lora FILE,…",
        "LoRA adapters, GGUF files; several with commas, or in several options.",
        type=FileNames(),
        multiple=True,
        show_default=False,
    )
    lora_scaled: tuple[list[_Scaled], ...] = setting(
        (),
        "--lora-scaled FILE:SCALE,…",
        "The same with a scale for each.",
        type=ScaledFiles(),
        multiple=True,
        show_default=False,
    )
    control_vector: tuple[list[Path], ...] = setting(
        (),
        "--control-vector FILE,…",
        "Control vectors, GGUF files, which are summed.",
        type=FileNames(),
        multiple=True,
        show_default=False,
    )
    control_vector_scaled: tuple[list[_Scaled], ...] = setting(
        (),
        "--control-vector-scaled FILE:SCALE,…",
        "The same with a scale for each.",
        type=ScaledFiles(),
        multiple=True,
        show_default=False,
    )
    control_vector_layer_range: tuple[int, int] | None = setting(
        None,
        "--control-vector-layer-range FIRST LAST",
        "The layers that have the control vector, counted from 0.",
        type=(Whole(1), Whole(1)),
        show_default="all but layer 0",
    )

    def arguments(self) -> dict[str, Any]:
        """Those of `Llama`. Raises click.UsageError for a range without a control vector."""
        vectors = _files(self.control_vector, self.control_vector_scaled)
        if self.control_vector_layer_range is not None and not vectors:
            raise click.UsageError(
                "--control-vector-layer-range needs --control-vector or --control-vector-scaled."
            )
        return {
            "lora_adapters": _files(self.lora, self.lora_scaled),
            "control_vectors": vectors,
            "control_vector_layer_range": self.control_vector_layer_range,
        }


def _files(plain: tuple[list[Path], ...], scaled: tuple[list[_Scaled], ...]) -> list[_Scaled]:
    return [(path, 1.0) for path in chain(*plain)] + list(chain(*scaled))


adapter_options = group(AdapterOptions, "adapters", SECTION)

"""Options of rotary embeddings that take the place of a file's, as overrides of its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike

from ggmlpy.common.arguments import as_float, as_int, parsed
from ggmlpy.common.quoting import quoted
from ggmlpy.errors import ArgumentError
from ggmlpy.gguf import GGUFFile
from ggmlpy.gguf.overrides import Scalar, overridden

SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class RopeOverrides:
    """llama.cpp's options; None leaves what the file says. Raises ArgumentError.

    scaling      the type of scaling, one of SCALINGS
    freq_base    the base of the frequencies
    freq_scale   what positions are multiplied by: 1 / factor of the context's growth
    ext_factor   YaRN: how much extrapolation is mixed in; 0: none
    beta_fast, beta_slow   YaRN: rotations within the training context between which it mixes
    n_ctx_orig   YaRN: the context that the model was trained with
    """

    scaling: str | None = None
    freq_base: float | None = None
    freq_scale: float | None = None
    ext_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    n_ctx_orig: int | None = None

    def __post_init__(self) -> None:
        if self.scaling is not None and self.scaling not in SCALINGS:
            raise ArgumentError(
                f"rope_scaling is {quoted(str(self.scaling))}: it must be one of"
                f" {', '.join(SCALINGS)}"
            )
        if self.ext_factor is not None:
            parsed(as_float, "RopeOverrides", "ext_factor", self.ext_factor)
        for name in ("freq_base", "freq_scale", "beta_fast", "beta_slow", "n_ctx_orig"):
            value = getattr(self, name)
            if value is None:
                continue
            parse = as_int if name == "n_ctx_orig" else as_float
            if not parsed(parse, "RopeOverrides", name, value) > 0:
                raise ArgumentError(f"rope {name} is {value}: it must be above 0")

    def as_metadata(self, architecture: str) -> dict[str, Scalar]:
        """What these are as keys of a file."""
        scale = self.freq_scale
        found: dict[str, Scalar | None] = {
            "scaling.type": self.scaling,
            "freq_base": _real(self.freq_base),
            "scaling.factor": None if scale is None else 1.0 / scale,
            "scaling.yarn_ext_factor": _real(self.ext_factor),
            "scaling.yarn_beta_fast": _real(self.beta_fast),
            "scaling.yarn_beta_slow": _real(self.beta_slow),
            "scaling.original_context_length": self.n_ctx_orig,
        }
        return {f"{architecture}.rope.{key}": v for key, v in found.items() if v is not None}


def open_overridden(
    path: str | bytes | PathLike[str],
    kv_overrides: Mapping[str, Scalar] | None,
    rope: RopeOverrides | None,
) -> GGUFFile:
    """A model file with overrides of its metadata. Raises what `GGUFFile.open` raises."""
    file = GGUFFile.open(path, kv_overrides)
    if rope is not None:
        keys = rope.as_metadata(file.metadata.str("general.architecture"))
        file.metadata = overridden(file.metadata, keys)
    return file


def scale_of(freq_scale: float | None, factor: float | None) -> float | None:
    """The scale of positions, given as itself or as the factor by which the context grows.

    Raises ArgumentError for both, and for a factor that is not above 0.
    """
    if factor is None:
        return freq_scale
    if freq_scale is not None:
        raise ArgumentError(
            f"rope-scale is {factor} and rope-freq-scale is {freq_scale}: give one of the two"
        )
    if not factor > 0:
        raise ArgumentError(f"rope-scale is {factor}: it must be above 0")
    return 1.0 / factor


def _real(value: float | None) -> float | None:
    return None if value is None else float(value)

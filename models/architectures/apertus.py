"""Apertus: llama with normed heads of q and k, and xIELU in place of a gate. Swiss AI, 2025.

xIELU (Huang & Schlag, 2024) has parameters that are trained, for each layer its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.errors import WeightError
from ggmlpy.gguf import GGUFFile, LazyArray
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.pre_norm import PreNormDecoder

PARAMETERS = ("alpha_n", "alpha_p", "beta", "eps")  # keys xielu.*, of no architecture


@dataclass(frozen=True, slots=True)
class XieluFeedForward:
    """down(xielu(up(x)))."""

    up: Linear  # [E, F]
    down: Linear  # [F, E]
    parameters: tuple[float, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """x [E, T] -> [E, T]"""
        alpha_n, alpha_p, beta, eps = self.parameters
        h = ops.xielu(self.up(x), alpha_n, alpha_p, beta, eps).named("ffn_xielu")  # [F, T]
        return self.down(h).named("ffn_out")  # [E, T]


class Apertus(PreNormDecoder):
    """An apertus model."""

    qk_norm = "rms"

    def read(self, file: GGUFFile) -> HParams:
        """With the parameters of the activation in each layer."""
        h = read_hparams(file)
        self.xielu = list(zip(*(_by_layer(file, p, h.n_layer) for p in PARAMETERS), strict=True))
        return h

    def ffn(self, i: int) -> XieluFeedForward:
        """Without a gate."""
        h, blk = self.hparams, f"blk.{i}"
        E, F = h.n_embd, h.layers[i].n_ff
        return XieluFeedForward(
            Linear.take(self.weights, f"{blk}.ffn_up", E, F, scaled=False),
            Linear.take(self.weights, f"{blk}.ffn_down", F, E, scaled=False),
            self.xielu[i],
        )


def _by_layer(file: GGUFFile, name: str, n_layer: int) -> list[float]:
    """A parameter of each layer: of a list, or one number for all."""
    key = f"xielu.{name}"
    if not isinstance(file.metadata.get(key), LazyArray):
        return [file.metadata.float(key)] * n_layer
    listed = [float(x) for x in file.metadata.array(key, of="float")]
    if len(listed) != n_layer:
        must_be = f"one of {n_layer}, the block_count"
        raise WeightError(f'{file.name}: key "{key}" is a list of {len(listed)}, must be {must_be}')
    return listed

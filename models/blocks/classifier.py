"""What rerankers compute of a text's pooled embedding: scores.

Letters in shapes: E n_embd, C labels of a classifier, N texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.hparams import HParams
from ggmlpy.models.weights import Weights

HeadActivation = Literal["tanh", "gelu"]
_ACTIVATIONS: dict[HeadActivation, Callable[[Tensor], Tensor]] = {
    "tanh": ops.tanh,
    "gelu": ops.gelu,
}
_MEAN = 1  # llama.cpp's number of that pooling


@dataclass(frozen=True, slots=True)
class Classifier:
    """out(norm(act(dense(x)))), of which a file may have only some: the scores of C labels."""

    dense: Linear | None  # [E, E]; without `out` [E, C]
    norm: Norm | None
    out: Linear | None  # [E, C]
    activation: HeadActivation
    normalise: bool  # the scores to a sum of one
    of_mean: bool  # x is the mean of all tokens, else of one

    @classmethod
    def maybe(
        cls,
        weights: Weights,
        h: HParams,
        *,
        activation: HeadActivation = "tanh",
        normalise: bool = False,
        n_dense: int | None = None,
        of_mean: bool = False,
    ) -> Classifier | None:
        """The tensors `cls`, `cls.norm` and `cls.output`; None if the file has neither of the
        maps. `cls` gives `n_dense` elements, E by default; `of_mean` unless the file says."""
        E, C = h.n_embd, h.keys.length("classifier.output_labels", 1)
        dense = out = norm = None
        if weights.has("cls.weight"):
            dense = Linear.take(weights, "cls", E, n_dense or E)
            if weights.has("cls.norm.weight"):
                norm = Norm.take(weights, "cls.norm", E, h, "layer")
        if weights.has("cls.output.weight"):
            out = Linear.take(weights, "cls.output", E, C)
        if dense is None and out is None:
            return None
        of_mean = h.keys.whole("classifier.pooling_type", int(of_mean)) == _MEAN
        return cls(dense, norm, out, activation, normalise, of_mean)

    def __call__(self, x: Tensor) -> Tensor:
        """x [E, N] -> [C, N]"""
        if self.dense is not None:
            x = _ACTIVATIONS[self.activation](self.dense(x)).named("cls_act")
        if self.norm is not None:
            x = self.norm(x)
        if self.out is not None:
            x = self.out(x)
        return (ops.soft_max(x) if self.normalise else x).named("result_embd_pooled")

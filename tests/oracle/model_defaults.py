"""What models of tests have in common with most architectures."""

from __future__ import annotations

from ggmlpy.graph.tensor import Tensor
from ggmlpy.models import Model
from ggmlpy.models.blocks.classifier import Classifier
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs


class ModelDefaults:
    """The parts of ggmlpy.models.Model that say nothing special."""

    n_pos_per_embd = 1
    n_ctx_limit: int | None = None
    limited_by = ""
    position_limited = False
    fixed_by = ""
    can_generate = True
    has_logits = True
    classifier: Classifier | None = None
    start_token: int | None = None
    encoder: Model | None = None
    hparams: HParams

    @property
    def n_block(self) -> int:
        return self.hparams.n_layer

    def embeddings(self, inputs: GraphInputs) -> Tensor:
        """Not asked of them."""
        raise NotImplementedError

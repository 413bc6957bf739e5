"""The specifications of the tiny models: odd sizes, more than one period of every pattern."""

from __future__ import annotations

from tests.models.seeded import Seeded
from tests.models.seeded_specs.classic import CLASSIC_SPECS
from tests.models.seeded_specs.delta_nets import DELTA_NET_SPECS
from tests.models.seeded_specs.dense import DENSE_SPECS
from tests.models.seeded_specs.diffusion import DIFFUSION_SPECS
from tests.models.seeded_specs.encoders import ENCODER_SPECS
from tests.models.seeded_specs.experts import EXPERT_SPECS
from tests.models.seeded_specs.gemma import GEMMA_SPECS
from tests.models.seeded_specs.latent import LATENT_SPECS
from tests.models.seeded_specs.parts import PART_SPECS
from tests.models.seeded_specs.recurrent import RECURRENT_SPECS
from tests.models.seeded_specs.rwkv import RWKV_SPECS
from tests.models.seeded_specs.streams import STREAM_SPECS

_FAMILIES = (
    CLASSIC_SPECS,
    DELTA_NET_SPECS,
    DENSE_SPECS,
    DIFFUSION_SPECS,
    ENCODER_SPECS,
    EXPERT_SPECS,
    GEMMA_SPECS,
    LATENT_SPECS,
    PART_SPECS,
    RECURRENT_SPECS,
    RWKV_SPECS,
    STREAM_SPECS,
)
# Of architectures that llama.cpp does not have there is no recording: by specification, the file of
# tests/models that compares it with a plain forward pass in numpy, in float64.
COMPARED_WITH_NUMPY: dict[str, str] = {}
SPECS: dict[str, Seeded] = {name: spec for family in _FAMILIES for name, spec in family.items()}

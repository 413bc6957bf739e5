"""The specifications of the tiny models with latent attention and several residual streams."""

from __future__ import annotations

from typing import Any

from tests.models.seeded import Seeded
from tests.models.seeded_specs.keys import spec
from tests.models.seeded_specs.latent import INDEXER, LATENT, LATENT_TENSORS

STREAMS: dict[str, Any] = LATENT | {
    "block_count": 3,
    "hyper_connection.count": 3,
    "hyper_connection.epsilon": 1e-3,
    "hyper_connection.magnitude": 1.7,
    "swiglu_clamp_exp": [0.0, 0.4, 0.9],
}
STREAM_TENSORS = LATENT_TENSORS + r"|.*\.attn_(gate|sinks)\.weight"
ELEMENT_GATE = {r".*\.attn_gate\.weight": (64, 80)}

STREAM_SPECS: dict[str, Seeded] = {
    "hy_v4": spec("hy_v4", STREAM_TENSORS, STREAMS, shapes=ELEMENT_GATE),
    "hy_v4-indexer": spec(
        "hy_v4",
        STREAM_TENSORS,
        STREAMS
        | {
            "attention.indexer.head_count": 64,
            "attention.indexer.key_length": 128,
            "attention.indexer.top_k": 256,
            "attention.indexer.types": [True, False, True],
        },
        shapes=ELEMENT_GATE,
        extra={name.replace("{i}", i): ne for i in "02" for name, ne in INDEXER.items()},
    ),
}

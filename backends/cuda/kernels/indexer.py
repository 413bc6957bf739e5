"""The lightning indexer's scores."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ggmlpy.backends.cuda.args import TENSOR
from ggmlpy.backends.cuda.kernel import Launch, Work, kernel
from ggmlpy.backends.cuda.shapes import blocks
from ggmlpy.backends.cuda.source import Form

ARGS = np.dtype(
    [*((name, TENSOR) for name in ("y", "q", "k", "weights", "mask")), ("k_type", "i4")],
    align=True,
)
FORM = Form("indexer.cu", "lightning_indexer")
THREADS = 256
_CELLS = 64  # of a block, as in indexer.cu
_KEYS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")


def _indexer(w: Work) -> Iterator[Launch]:
    _, _, n_tokens, n_streams = w["q"].ne
    k = w["k"]
    n_blocks = blocks(k.ne[2], _CELLS) * int(n_tokens) * int(n_streams)
    yield Launch(FORM, ARGS, (n_blocks, 1, 1), THREADS, values={"k_type": k.type.id})


for _type in _KEYS:
    kernel("lightning_indexer", ("f32", _type, "f32", "f16"), forms=[FORM])(_indexer)

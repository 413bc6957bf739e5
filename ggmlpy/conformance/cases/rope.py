"""Rotary position embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy import ops
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.inputs import Inputs, builds
from ggmlpy.graph.spec import as_ne
from ggmlpy.graph.tensor import Tensor, from_numpy

_ROPE_DEFAULTS: dict[str, Any] = {
    "mode": 0,
    "n_ctx_orig": 512,
    "freq_base": 10000.0,
    "freq_scale": 1.0,
    "ext_factor": 0.0,
    "attn_factor": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}


@builds("rope_ext")
@builds("rope_ext_back")
def _rope(case: Case, inputs: Inputs) -> Tensor:
    """ne: x; params: factors=True for frequency factors, max_pos, offset, and those of
    rope_ext."""
    params = {k: case.params.get(k, default) for k, default in _ROPE_DEFAULTS.items()}
    n_tokens = as_ne(case.ne[0])[2]
    sections = case.params.get("sections")
    n_pos = n_tokens if sections is None else 4 * n_tokens
    pos = inputs.ids((n_pos,), case.params.get("max_pos", 512))
    n_dims = case.params.get("n_dims", case.ne[0][0])
    factors = None
    if case.params.get("factors"):
        factors = from_numpy(inputs.rng.uniform(0.9, 1.1, n_dims).astype(np.float32))
    back = case.op == "rope_ext_back"
    if sections is None:
        function = ops.rope_ext_back if back else ops.rope_ext
        y = function(inputs[0], pos, factors, n_dims, **params)
    else:
        of_axes = ops.rope_multi_back if back else ops.rope_multi
        y = of_axes(inputs[0], pos, factors, n_dims, sections, **params)
    return ops.rope_set_offset(y, case.params.get("offset", 0))


CASES: list[Case] = [
    *(
        Case("rope_ext", ne=[(64, 5, 7, 2)], types=(t,), n_dims=n_dims, mode=mode, factors=factors)
        for t in ("f32", "f16")
        for n_dims in (64, 32)
        for mode in (0, 2)
        for factors in (False, True)
    ),
    *(
        Case("rope_ext", ne=[(64, 5, 7)], mode=mode, factors=factors,
             freq_scale=0.25, ext_factor=1.0, attn_factor=0.9)
        for mode in (0, 2)
        for factors in (False, True)
    ),
    *(Case("rope_ext", ne=[(80, 5, 7)], mode=m, layouts=(v,)) for m in (0, 2)
      for v in ("permuted", "view")),
    *(Case("rope_ext", ne=[(96, 3, 5)], n_dims=20, mode=m, freq_base=5e5) for m in (0, 2)),
    *(Case("rope_ext", ne=[(64, 2, 3)], mode=m, freq_scale=0.5, attn_factor=1.5) for m in (0, 2)),
    # In f32 an angle of 30,000 is known to 0.002: ggml has no better.
    *(Case("rope_ext", ne=[(64, 2, 37)], mode=m, max_pos=30_000) for m in (0, 2)),
    Case("rope_ext", ne=[(4, 1, 70_001)], mode=0),
    *(
        Case("rope_ext", ne=[(64, 3, 7, 2)], n_dims=n_dims, mode=mode, sections=sections)
        for mode, n_dims, sections in (
            (8, 64, (16, 8, 8, 0)), (8, 64, (8, 8, 8, 8)), (8, 32, (4, 6, 6, 0)),
            (40, 64, (12, 10, 10, 0)), (40, 64, (20, 6, 6, 0)), (24, 32, (16, 16, 0, 0)),
        )
    ),
    *(Case("rope_ext_back", ne=[(64, 5, 7, 2)], types=(t,), n_dims=n_dims, mode=mode, factors=f)
      for t in ("f32", "f16") for n_dims in (64, 32) for mode in (0, 2) for f in (False, True)),
    *(Case("rope_ext_back", ne=[(64, 3, 7)], mode=mode, freq_scale=0.25, ext_factor=1.0,
           attn_factor=0.9) for mode in (0, 2)),
    *(Case("rope_ext_back", ne=[(64, 3, 7, 2)], n_dims=n_dims, mode=mode, sections=sections)
      for mode, n_dims, sections in ((8, 64, (16, 8, 8, 0)), (40, 64, (12, 10, 10, 0)),
                                     (24, 32, (16, 16, 0, 0)))),
    *(Case(op, ne=[(96, 3, 5)], types=(t,), n_dims=n_dims, mode=mode, offset=offset)
      for op in ("rope_ext", "rope_ext_back") for t in ("f32", "f16") for mode in (0, 2)
      for n_dims, offset in ((64, 32), (20, 6), (2, 94), (34, 18))),
    *(Case("rope_ext", ne=[(96, 3, 5)], n_dims=64, mode=mode, sections=(16, 8, 8, 0), offset=o)
      for mode in (8, 40) for o in (16, 32)),
    *(Case("rope_ext", ne=[(96, 3, 5)], n_dims=64, mode=m, offset=10, layouts=(v,)) for m in (0, 2)
      for v in ("permuted", "view")),
]  # fmt: skip

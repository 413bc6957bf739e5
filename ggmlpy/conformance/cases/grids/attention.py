"""Attention: head sizes, groups, batches, lengths, types of keys and values, masks and biases."""

from __future__ import annotations

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.attention import attention, listed
from ggmlpy.conformance.cases.sizes import CACHE_TYPES

_SIZES = (32, 40, 64, 72, 80, 96, 112, 128, 192, 256)
_GROUPS = ((4, 4), (4, 1), (6, 2), (8, 1), (12, 1), (5, 5))
_BLOCKS = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
_MIXED = (("q8_0", "q4_0"), ("q4_0", "f16"), ("f16", "f32"), ("f16", "q4_0"), ("q8_0", "f16"))
_LENGTHS = (1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513)

CASES: list[Case] = [
    *(attention(d, n, h, 65, mask="random") for d in _SIZES for h in _GROUPS for n in (1, 2, 5)),
    *(attention(d, n, (2, 1), 37, size_v=v, mask="random")
      for d, v in ((192, 128), (320, 256), (576, 512), (512, 512), (72, 64), (64, 72), (65, 67))
      for n in (1, 4)),
    *(attention(d, n, (4, 2), 113, mask="random", sinks=s, max_bias=b, softcap=c)
      for d in (64, 80, 128) for n in (1, 3) for s in (False, True) for b in (0.0, 8.0)
      for c in (0.0, 10.0)),
    *(attention(64, n, (4, 2), 113, sinks=s, softcap=c) for n in (1, 3, 33)
      for s in (False, True) for c in (0.0, 10.0)),  # no mask
    *(attention(64, n, h, n_kv, mask=m) for n in (1, 6) for h in ((2, 1),) for n_kv in _LENGTHS
      for m in ("random", "causal") if n_kv >= n),
    *(attention(64, n, h, 48, mask="random") for n in (7, 8, 9, 15, 16, 17, 31, 32, 63, 64, 65)
      for h in ((2, 2), (4, 1), (1, 1))),
    *(attention(d, n, h, 70, n_seq=s, kv=kv, mask="random") for d in (64, 128) for kv in CACHE_TYPES
      for h in ((4, 4), (6, 2)) for n, s in ((1, 1), (1, 3), (4, 2))),
    *(attention(d, n, (4, 1), 70, kv=kv, mask="random", cache=True) for d in (32, 96, 256)
      for kv in CACHE_TYPES for n in (1, 3)),
    *(attention(64, n, (4, 2), 97, kv=kv, mask="random", sinks=True, max_bias=8.0, softcap=10.0)
      for kv in CACHE_TYPES for n in (1, 4)),
    *(attention(64, n, (4, 2), 129, n_seq=4, kv=kv, mask="tails") for kv in CACHE_TYPES
      for n in (1, 3)),
    *(attention(64, n, (4, 2), 130, n_seq=2, kv=kv, mask=m, poison=True) for kv in CACHE_TYPES
      if kv not in ("q4_1", "q5_1") for n in (1, 4) for m in ("tails", "all")),
    *(attention(d, n, (4, 2), 66, n_seq=2, mask=m, sinks=s) for d in (40, 128) for n in (1, 4)
      for m in ("dead", "all", "holes") for s in (False, True)),
    *(attention(d, n, (6, 2), 65, mask="random", heads_mask=m, n_seq=2) for d in (64, 128)
      for n in (1, 5) for m in (2, 3, 6)),
    *(attention(64, n, (4, 2), 65, mask="random", rows_mask=n + r) for n in (1, 5)
      for r in (1, 59)),
    *(Case("flash_attn_ext", ne=[(64, n, 4, 1), (64, 65, 2, 1), (64, 65, 2, 1), (65, n)],
           types=("f32", kv, kv, "f16"), layouts=layouts)
      for kv in ("f32", "f16", "q8_0", "q4_0") for n in (1, 5)
      for layouts in (("view", "view", "view"), ("offset", "offset", "offset"),
                      ("0213", "", "0213"))),
    *(Case("flash_attn_ext", ne=[(d, n, 4, 1), (d, 64, 2, 1), (d, 64, 2, 1), (64, n)],
           types=("f32", k, v, "f16")) for k, v in _MIXED for d in (64, 128) for n in (1, 2)),
    *(attention(64, n, (2, 1), 2053, mask=m, kv=kv) for n in (1, 3) for m in ("causal", "holes")
      for kv in ("f16", "q8_0")),
    # Lists of cells in any order: types, head sizes, more entries than cells, streams.
    *(listed(d, n, h, 70, n_seq=s, kv=kv) for d in (64, 128) for kv in CACHE_TYPES
      for h in ((4, 4), (6, 2)) for n, s in ((1, 3), (4, 1))),
    *(listed(d, n, (4, 2), 70, n_seq=s, n_stream=2) for d in (32, 40, 72, 80, 96, 112, 192, 256)
      for n, s in ((1, 2), (3, 1))),
    *(listed(64, n, (4, 2), n_max, n_kv=n_kv) for n in (1, 3) for n_max, n_kv in
      ((1, 1), (2, 1), (15, 5), (16, 64), (17, 64), (33, 8), (65, 64), (257, 50))),
    *(listed(64, n, (4, 2), 70, n_seq=2, mask=m, sinks=s, max_bias=b) for n in (2, 4)
      for m in ("random", "dead", "all", "tails") for s in (False, True) for b in (0.0, 8.0)),
]  # fmt: skip

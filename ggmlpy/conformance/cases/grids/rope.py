"""Rope: every mode with its context extension, types, strides, and sizes of heads."""

from __future__ import annotations

from ggmlpy.conformance.case import Case

_NORMAL, _NEOX, _MROPE, _VISION, _IMROPE = 0, 2, 8, 24, 40
_SCALES = tuple((f, e, a) for f in (1.0, 1.4245) for e in (0.0, 0.7465) for a in (1.0, 1.4245))
_HEADS = ((64, 64), (80, 20), (80, 32), (128, 128), (96, 2), (36, 36), (16, 16), (2, 2), (256, 64))
_SECTIONS = ((_MROPE, 64, (16, 8, 8, 0)), (_IMROPE, 64, (12, 10, 10, 0)),
             (_VISION, 32, (16, 16, 0, 0)))  # fmt: skip

CASES: list[Case] = [
    *(Case("rope_ext", ne=[(64, 3, 4)], types=(t,), mode=m, factors=ff, freq_scale=f,
           ext_factor=e, attn_factor=a)
      for t in ("f32", "f16") for m in (_NORMAL, _NEOX) for ff in (False, True)
      for f, e, a in _SCALES),
    *(Case("rope_ext", ne=[(64, 3, 4)], types=(t,), mode=m, n_dims=n, sections=s, factors=ff,
           freq_scale=f, ext_factor=e, attn_factor=a)
      for t in ("f32", "f16") for m, n, s in _SECTIONS for ff in (False, True)
      for f, e, a in _SCALES),
    *(Case("rope_ext", ne=[(d, h, 3)], types=(t,), n_dims=n, mode=m) for d, n in _HEADS
      for h in (1, 5) for t in ("f32", "f16") for m in (_NORMAL, _NEOX)),
    *(Case("rope_ext", ne=[(64, 3, 5, 2)], types=(t,), layouts=(v,), n_dims=n, mode=m, factors=ff)
      for t in ("f32", "f16") for v in ("view", "offset", "0213", "0321") for n in (64, 36)
      for m in (_NORMAL, _NEOX) for ff in (False, True)),
    *(Case("rope_ext", ne=[(64, 3, 5, 2)], types=(t,), layouts=(v,), mode=m, n_dims=n, sections=s)
      for t in ("f32", "f16") for v in ("view", "0213") for m, n, s in _SECTIONS),
    *(Case("rope_ext", ne=[(64, 2, n)], mode=m, freq_base=b) for n in (1, 33, 129)
      for m in (_NORMAL, _NEOX) for b in (1e4, 5e5)),
]  # fmt: skip

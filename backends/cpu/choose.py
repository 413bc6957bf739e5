"""The usual chain of sampling, compiled: top_k | top_p | min_p | temperature | draw.

Token for token what the steps in ggmlpy/sampling/filters.py and candidates.py give, one after
another (but for the last bit of an exponential, see `exp`), which take some thirty calls of numpy,
a microsecond each. Here it is one pass over the logits for the k largest, and loops over those:

    heap      k i64   the k best so far, the worst on top (kernels/sort.py); then sorted, best first
    weights   k f64   exp((logit - max) / t)
    mask      a bit for each token, in whole words of 64: 1 for those that a grammar allows

Of a mask, words without any bit are skipped with their logits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy.backends.cpu.kernel import Int, Record, entry, inline
from ggmlpy.backends.cpu.kernels.sort import make_heap, pack, sift_down, sort_heap
from ggmlpy.backends.cpu.simd.arith import is_nan, less, lowest_bit, select, splat_f32x16
from ggmlpy.backends.cpu.simd.convert import bits_of_mask, f64_from_bits, mask_of_bits
from ggmlpy.backends.cpu.simd.core import f64, i64
from ggmlpy.backends.cpu.simd.memory import (
    load_f32,
    load_f32x16,
    load_f32x16_part,
    load_f64,
    load_i64,
    store_f32x16,
    store_f32x16_part,
    store_f64,
    store_i64,
)

CHAIN = np.dtype(
    [
        ("heap", "i8"),
        ("weights", "i8"),
        ("k", "i8"),
        ("min_keep", "i8"),
        ("top_p", "f8"),  # 1: no such step
        ("log_min_p", "f8"),  # -inf: no such step
        ("temperature", "f8"),
        ("mask", "i8"),  # 0: all tokens are allowed
    ]
)
NONE = -1  # no token: a NaN or a +inf among the logits, or nothing but -inf
_EMPTY = 0x7FFFFFFFFFFFFFFF  # in the heap: worse than any token

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # with so few bits that its product with any n is exact
_LN2_LOW = 1.90821492927058770002e-10
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to a whole number
_SMALLEST = -700.0  # its exponential is negligible beside 1, that of the largest logit


@inline
def exp(x: Any) -> Any:
    """e^x for x <= 0, f64, to a bit or so: 2^n times a Taylor series for |r| <= ln(2) / 2."""
    if x < _SMALLEST:
        return 0.0
    n = (x * _LOG2_E + _ROUND) - _ROUND
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = 1 / 479001600 + r * (1 / 6227020800)  # 1 / 12! and 1 / 13!
    p = 1 / 3628800 + r * (1 / 39916800 + r * p)
    p = 1 / 40320 + r * (1 / 362880 + r * p)
    p = 1 / 720 + r * (1 / 5040 + r * p)
    p = 1 / 24 + r * (1 / 120 + r * p)
    p = 1 / 2 + r * (1 / 6 + r * p)
    return (1.0 + (r + r * r * p)) * f64_from_bits((np.int64(n) + 1023) << 52)


@inline
def _logit(logits: Int, packed: Int) -> Any:
    return np.float64(load_f32(logits + 4 * (packed & 0x7FFFFFFF)))


@inline
def _offer(heap: Int, k: Int, logits: Int, i: Int) -> None:
    """Adds logit i to the k best if it is one of them."""
    candidate = pack(logits, i, 1)
    if candidate < load_i64(heap):
        store_i64(heap, candidate)
        sift_down(heap, 0, k)


@inline
def _find_largest(heap: Int, k: Int, logits: Int, n: Int) -> Int:
    """The k largest of n logits to the heap, best first, of equal ones the lowest id; how many of
    them are not -inf. 0 if a logit is NaN."""
    for i in range(k):
        value = load_f32(logits + 4 * i)
        if value != value:
            return 0
        store_i64(heap + 8 * i, pack(logits, i, 1))
    make_heap(heap, k)
    whole = k + ((n - k) & -16)
    worst = splat_f32x16(np.float32(_logit(logits, load_i64(heap))))
    for first in range(k, whole, 16):
        x = load_f32x16(logits + 4 * first)
        if bits_of_mask(is_nan(x)) != 0:
            return 0
        better = bits_of_mask(less(worst, x))
        if better != 0:
            while better != 0:
                _offer(heap, k, logits, first + lowest_bit(better))
                better &= better - 1
            worst = splat_f32x16(np.float32(_logit(logits, load_i64(heap))))
    for i in range(whole, n):
        value = load_f32(logits + 4 * i)
        if value != value:
            return 0
        _offer(heap, k, logits, i)
    sort_heap(heap, k)
    n_possible = k
    while n_possible > 0 and _logit(logits, load_i64(heap + 8 * (n_possible - 1))) == -np.inf:
        n_possible -= 1
    return n_possible


@inline
def _worst(heap: Int, logits: Int) -> Any:
    """The logit that others must exceed to be among the best; of equal ones the first is in."""
    if load_i64(heap) == _EMPTY:
        return np.float32(-np.inf)
    return np.float32(_logit(logits, load_i64(heap)))


@inline
def _offer_all(heap: Int, k: Int, logits: Int, first: Int, better: Int) -> None:
    """Adds those of 16 logits whose bits are set to the k best."""
    while better != 0:
        _offer(heap, k, logits, first + lowest_bit(better))
        better &= better - 1


@inline
def _find_allowed(heap: Int, k: Int, logits: Int, n: Int, mask: Int) -> Int:
    """As `_find_largest`, of the tokens in the mask; other logits may be anything."""
    for i in range(k):
        store_i64(heap + 8 * i, _EMPTY)
    worst = splat_f32x16(np.float32(-np.inf))
    whole = n & -16
    for start in range(0, n, 64):
        word = load_i64(mask + (start >> 3))
        if word != 0:
            for first in range(start, min(start + 64, whole), 16):
                allowed = (word >> (first - start)) & 0xFFFF
                if allowed != 0:
                    x = load_f32x16(logits + 4 * first)
                    if (bits_of_mask(is_nan(x)) & allowed) != 0:
                        return 0
                    better = bits_of_mask(less(worst, x)) & allowed
                    if better != 0:
                        _offer_all(heap, k, logits, first, better)
                        worst = splat_f32x16(_worst(heap, logits))
    if whole < n:
        allowed = (load_i64(mask + ((whole >> 6) << 3)) >> (whole & 63)) & ((1 << (n - whole)) - 1)
        x = load_f32x16_part(logits + 4 * whole, n - whole)
        if (bits_of_mask(is_nan(x)) & allowed) != 0:
            return 0
        _offer_all(heap, k, logits, whole, bits_of_mask(less(worst, x)) & allowed)
    sort_heap(heap, k)
    n_possible = k
    while n_possible > 0 and load_i64(heap + 8 * (n_possible - 1)) == _EMPTY:
        n_possible -= 1
    return n_possible


@inline
def _weigh(p: Record, logits: Int, n: Int, temperature: Any) -> None:
    largest = _logit(logits, load_i64(p.heap))
    for i in range(n):
        below = _logit(logits, load_i64(p.heap + 8 * i)) - largest
        store_f64(p.weights + 8 * i, exp(below / temperature))


@inline
def _n_reaching(p: Record, n: Int, share: Any, beyond: Int) -> Int:
    """How many of n weights, from the first on, add up to `share` of all; or to more than that."""
    total = 0.0
    for i in range(n):
        total += load_f64(p.weights + 8 * i)
    target = share * total
    reached = 0.0
    for i in range(n):
        reached += load_f64(p.weights + 8 * i)
        if reached > target or (beyond == 0 and reached == target):
            return i + 1
    return n


@entry(i64, i64, i64, i64, f64, record=CHAIN)
def choose(p: Record, logits: Int, n: Int, u: Any) -> Int:
    """The token drawn from n f32 logits by u in [0, 1); NONE if there is none."""
    n_left: Int = 0
    if p.mask != 0:
        n_left = _find_allowed(p.heap, min(p.k, n), logits, n, p.mask)
    else:
        n_left = _find_largest(p.heap, min(p.k, n), logits, n)
    if n_left == 0:
        return NONE
    largest = _logit(logits, load_i64(p.heap))
    if largest == np.inf:
        return NONE
    if p.top_p < 1.0:
        _weigh(p, logits, n_left, 1.0)
        n_left = min(n_left, max(_n_reaching(p, n_left, p.top_p, 0), p.min_keep))
    n_probable = 0
    for i in range(n_left):
        if _logit(logits, load_i64(p.heap + 8 * i)) >= largest + p.log_min_p:
            n_probable = i + 1
    n_left = min(n_left, max(n_probable, p.min_keep))
    _weigh(p, logits, n_left, p.temperature)
    drawn = _n_reaching(p, n_left, u, 1) - 1
    return load_i64(p.heap + 8 * drawn) & 0x7FFFFFFF


@entry(i64, i64, i64, i64, i64)
def keep_allowed(into: Int, logits: Int, n: Int, mask: Int) -> Int:
    """Copies n f32 logits; those of tokens outside the mask become -inf."""
    nothing = splat_f32x16(np.float32(-np.inf))
    whole = n & -16
    for first in range(0, whole, 16):
        allowed = mask_of_bits(load_i64(mask + ((first >> 6) << 3)) >> (first & 63))
        store_f32x16(into + 4 * first, select(allowed, load_f32x16(logits + 4 * first), nothing))
    if whole < n:
        allowed = mask_of_bits(load_i64(mask + ((whole >> 6) << 3)) >> (whole & 63))
        x = load_f32x16_part(logits + 4 * whole, n - whole)
        store_f32x16_part(into + 4 * whole, select(allowed, x, nothing), n - whole)
    return n

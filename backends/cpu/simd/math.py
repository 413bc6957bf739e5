"""Elementary functions on f32 vectors, and on single numbers by the same steps.

Polynomials and their range reductions follow S. Moshier's Cephes library (single precision).
Errors are a few ulp; NaN propagates; infinities give the limits.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.simd.arith import absolute, add, copy_sign, div, fma, less, mul, sub
from ggmlpy.backends.cpu.simd.core import Emitter, elementwise, f32, f32x16, f64, int_like

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693359375  # 9 bits, so that its product with an exponent is exact
_LN2_LOW = -2.12194440e-4
_ROUND_F32 = 12582912.0  # 1.5 * 2^23: adding it rounds the fraction away
_ROUND_F64 = 6755399441055744.0  # 1.5 * 2^52
_PI_2_HIGH = 1.57079632673412561417  # 33 bits
_PI_2_LOW = 6.07710050650619224932e-11


def polynomial(b: Emitter, x: Any, *coefficients: float) -> Any:
    """The polynomial in x, highest power first."""
    total = b.const(x.type, coefficients[0])
    for coefficient in coefficients[1:]:
        total = fma(b, total, x, coefficient)
    return total


def _power_of_two(b: Emitter, n: Any, like: Any) -> Any:
    """2^n as f32 for integers -126 <= n <= 127."""
    biased = b.add(n, b.const(n.type, 127))
    return b.bitcast(b.shl(biased, b.const(n.type, 23)), like)


def _scaled_by_power_of_two(b: Emitter, y: Any, n: Any) -> Any:
    """y * 2^n with one rounding, by AVX512's instruction; n are integers as f32."""
    all_lanes, current_rounding = ir.Constant(ir.IntType(16), -1), ir.Constant(ir.IntType(32), 4)
    name = "llvm.x86.avx512.mask.scalef.ps.512"
    return b.llvm(name, y.type, y, n, y, all_lanes, current_rounding)


@elementwise(f32, scalars=True)
def exp(b: Emitter, x: Any) -> Any:
    """e^x: 0 at -inf, inf above 88.72, denormals included."""
    ints = int_like(x.type)
    x = b.select(less(b, x, -110.0), b.const(x.type, -110.0), x)
    x = b.select(less(b, b.const(x.type, 100.0), x), b.const(x.type, 100.0), x)
    shifted = fma(b, x, _LOG2_E, _ROUND_F32)
    n = b.sub(b.bitcast(shifted, ints), b.bitcast(b.const(x.type, _ROUND_F32), ints))
    whole = sub(b, shifted, _ROUND_F32)
    r = fma(b, whole, -_LN2_HIGH, x)
    r = fma(b, whole, -_LN2_LOW, r)
    p = polynomial(
        b,
        r,
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
    y = add(b, fma(b, mul(b, r, r), p, r), 1.0)
    if x.type == f32x16.ir and "avx512" in b.isa.has:
        return _scaled_by_power_of_two(b, y, whole)
    # In two factors, because 2^n itself may overflow or be denormal where the result is not.
    half = b.ashr(n, b.const(ints, 1))
    y = mul(b, y, _power_of_two(b, half, x.type))
    return mul(b, y, _power_of_two(b, b.sub(n, half), x.type))


@elementwise(f32, scalars=True)
def log(b: Emitter, x: Any) -> Any:
    """The natural logarithm: -inf at 0, NaN below."""
    ints = int_like(x.type)
    tiny = less(b, x, 2.0**-126)
    scaled = b.select(tiny, mul(b, x, 2.0**25), x)
    bits = b.bitcast(scaled, ints)
    mantissa = b.or_(b.and_(bits, b.const(ints, 0x7FFFFF)), b.const(ints, 0x3F000000))
    m = b.bitcast(mantissa, x.type)  # in [0.5, 1)
    e = b.sub(b.lshr(bits, b.const(ints, 23)), b.const(ints, 126))
    e = b.sub(e, b.select(tiny, b.const(ints, 25), b.const(ints, 0)))
    low = less(b, m, 0.70710678)
    exponent = b.sitofp(b.sub(e, b.zext(low, ints)), x.type)
    m = sub(b, add(b, m, b.select(low, m, b.const(x.type, 0.0))), 1.0)
    z = mul(b, m, m)
    p = polynomial(
        b,
        m,
        7.0376836292e-2,
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    )
    y = mul(b, mul(b, m, z), p)
    y = fma(b, exponent, _LN2_LOW, y)
    y = fma(b, z, -0.5, y)
    y = fma(b, exponent, _LN2_HIGH, add(b, m, y))
    infinite = b.fcmp_ordered("==", x, b.const(x.type, float("inf")))
    zero = b.fcmp_ordered("==", x, b.const(x.type, 0.0))
    y = b.select(infinite, x, y)
    y = b.select(zero, b.const(x.type, float("-inf")), y)
    undefined = b.fcmp_unordered("<", x, b.const(x.type, 0.0))  # negative, or NaN itself
    return b.select(undefined, b.const(x.type, float("nan")), y)


@elementwise(f32, scalars=True)
def sigmoid(b: Emitter, x: Any) -> Any:
    """1 / (1 + e^-x)."""
    return div(b, b.const(x.type, 1.0), add(b, exp(b, b.fneg(x)), 1.0))


@elementwise(f32, scalars=True)
def silu(b: Emitter, x: Any) -> Any:
    """x / (1 + e^-x); NaN at -inf, as the formula has it."""
    return div(b, x, add(b, exp(b, b.fneg(x)), 1.0))


@elementwise(f32, scalars=True)
def tanh(b: Emitter, x: Any) -> Any:
    """The hyperbolic tangent."""
    a = absolute(b, x)
    large = sub(
        b, b.const(x.type, 1.0), div(b, b.const(x.type, 2.0), add(b, exp(b, add(b, a, a)), 1.0))
    )
    z = mul(b, x, x)
    p = polynomial(
        b,
        z,
        -5.70498872745e-3,
        2.06390887954e-2,
        -5.37397155531e-2,
        1.33314422036e-1,
        -3.33332819422e-1,
    )
    small = fma(b, mul(b, p, z), x, x)
    return copy_sign(b, b.select(less(b, a, 0.625), small, large), x)


@elementwise(f32, scalars=True)
def erf(b: Emitter, x: Any) -> Any:
    """The error function."""
    a = absolute(b, x)
    z = mul(b, x, x)
    small = mul(
        b,
        x,
        polynomial(
            b,
            z,
            7.853861353153693e-5,
            -8.010193625184903e-4,
            5.188327685732524e-3,
            -2.685381193529856e-2,
            1.128358514861418e-1,
            -3.761262582423300e-1,
            1.128379165726710e0,
        ),
    )
    return b.select(less(b, a, 1.0), small, copy_sign(b, _erf_tail(b, a), x))


def _erf_tail(b: Emitter, a: Any) -> Any:
    """erf(a) for a >= 1, from the complement e^(-a^2) / a * P(1 / a^2)."""
    q = div(b, b.const(a.type, 1.0), a)
    y = mul(b, q, q)
    near = polynomial(
        b,
        y,
        2.326819970068386e-2,
        -1.387039388740657e-1,
        3.687424674597105e-1,
        -5.824733027278666e-1,
        6.210004621745983e-1,
        -4.944515323274145e-1,
        3.404879937665872e-1,
        -2.741127028184656e-1,
        5.638259427386472e-1,
    )
    far = polynomial(
        b,
        y,
        -1.047766399936249e1,
        1.297719955372516e1,
        -7.495518717768503e0,
        2.921019019210786e0,
        -1.015265279202700e0,
        4.218463358204948e-1,
        -2.820767439740514e-1,
        5.641895067754075e-1,
    )
    p = b.select(less(b, a, 2.0), near, far)
    complement = mul(b, mul(b, exp(b, b.fneg(mul(b, a, a))), q), p)
    return sub(b, b.const(a.type, 1.0), complement)


@elementwise(f32, scalars=True)
def gelu(b: Emitter, x: Any) -> Any:
    """0.5 x (1 + tanh(sqrt(2 / pi) x (1 + 0.044715 x^2)))."""
    inner = fma(b, mul(b, x, 0.044715), x, 1.0)
    inner = mul(b, mul(b, x, 0.7978845608028654), inner)
    return mul(b, mul(b, x, 0.5), add(b, tanh(b, inner), 1.0))


@elementwise(f32, scalars=True)
def gelu_quick(b: Emitter, x: Any) -> Any:
    """x / (1 + e^(-1.702 x))."""
    return div(b, x, add(b, exp(b, mul(b, x, -1.702)), 1.0))


@elementwise(f32, scalars=True)
def gelu_erf(b: Emitter, x: Any) -> Any:
    """0.5 x (1 + erf(x / sqrt(2)))."""
    return mul(b, mul(b, x, 0.5), add(b, erf(b, mul(b, x, 0.7071067811865476)), 1.0))


def _sine(b: Emitter, angle: Any, quarter_turns: int) -> Any:
    """sin(angle + quarter_turns * pi / 2) as f32, reduced in f64 so that large angles keep their
    phase."""
    wide = angle.type
    narrow = _shape(wide, ir.FloatType())
    longs, ints = _shape(wide, ir.IntType(64)), int_like(narrow)
    shifted = b.fadd(b.fmul(angle, b.const(wide, 0.6366197723675814)), b.const(wide, _ROUND_F64))
    quarters = b.fsub(shifted, b.const(wide, _ROUND_F64))
    rest = b.fsub(angle, b.fmul(quarters, b.const(wide, _PI_2_HIGH)))
    rest = b.fsub(rest, b.fmul(quarters, b.const(wide, _PI_2_LOW)))
    r = b.fptrunc(rest, narrow)
    quadrant = b.add(b.trunc(b.bitcast(shifted, longs), ints), b.const(ints, quarter_turns))
    z = mul(b, r, r)
    s = polynomial(b, z, -1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
    s = fma(b, mul(b, s, z), r, r)
    c = polynomial(b, z, 2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
    c = add(b, fma(b, mul(b, c, z), z, mul(b, z, -0.5)), 1.0)
    is_odd = b.icmp_signed("!=", b.and_(quadrant, b.const(ints, 1)), b.const(ints, 0))
    sign = b.shl(b.and_(quadrant, b.const(ints, 2)), b.const(ints, 30))
    return b.bitcast(b.xor(b.bitcast(b.select(is_odd, c, s), ints), sign), narrow)


def _shape(like: Any, element: Any) -> Any:
    return ir.VectorType(element, like.count) if isinstance(like, ir.VectorType) else element


@elementwise(f32, scalars=True)
def sin(b: Emitter, x: Any) -> Any:
    """The sine of an angle in radians, |x| < 2^30."""
    return _sine(b, b.fpext(x, _shape(x.type, ir.DoubleType())), 0)


@elementwise(f32, scalars=True)
def cos(b: Emitter, x: Any) -> Any:
    """The cosine of an angle in radians, |x| < 2^30."""
    return _sine(b, b.fpext(x, _shape(x.type, ir.DoubleType())), 1)


@elementwise(f64, result=f32)
def sin_f64(b: Emitter, angle: Any) -> Any:
    """The sine, as f32, of an angle in radians given as f64, |angle| < 2^30."""
    return _sine(b, angle, 0)


@elementwise(f64, result=f32)
def cos_f64(b: Emitter, angle: Any) -> Any:
    """The cosine, as f32, of an angle in radians given as f64, |angle| < 2^30."""
    return _sine(b, angle, 1)

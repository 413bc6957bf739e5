"""Sampling parameters and logits that cannot be used: a SamplingError that says why."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ggmlpy.errors import GgmlpyError, SamplingError
from ggmlpy.sampling import Sampler, SamplingParams
from tests.unit.naive_sampling import f32, sampler


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("top_k", [0, 2])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([0, math.nan, math.nan, 1], "2 of 4 logits are NaN, the first for token 1"),
        ([0, 1, 2, math.inf], "1 of 4 logits are .inf, the first for token 3"),
        ([-math.inf] * 4, "all logits are -inf"),
    ],
)
def test_bad_logits(temperature: float, top_k: int, bad: list[float], message: str) -> None:
    s = sampler(4, temperature=temperature, top_k=top_k)
    with pytest.raises(SamplingError, match=message):
        s.sample(f32(bad))
    with pytest.raises(SamplingError, match=message):
        s.probabilities(f32(bad))


def test_nan_in_a_large_vocabulary_is_found() -> None:
    logits = np.zeros(128_256, np.float32)
    logits[128_255] = np.nan
    with pytest.raises(SamplingError, match="token 128255"):
        Sampler(SamplingParams(), 128_256).sample(logits)


def test_banning_every_token_is_an_error() -> None:
    s = sampler(2, logit_bias={0: -math.inf, 1: -math.inf})
    with pytest.raises(SamplingError, match="all logits are -inf"):
        s.sample(f32([0, 0]))


@pytest.mark.parametrize("shape", [(3,), (5,), (1, 4), ()])
def test_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(SamplingError, match=r"must be \(4,\)"):
        sampler(4).sample(np.zeros(shape, np.float32))


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("temperature", math.nan, "a finite number; 0 or less is greedy"),
        ("temperature", math.inf, "a finite number"),
        ("temperature", "0.8", "a finite number"),
        ("temperature", True, "a finite number"),
        ("top_k", 1.5, "an integer; 0 or less keeps all"),
        ("top_k", None, "an integer"),
        ("top_p", 1.01, "a number in 0 .. 1"),
        ("top_p", -0.1, "a number in 0 .. 1"),
        ("min_p", math.nan, "a number in 0 .. 1"),
        ("typical_p", 2, "a number in 0 .. 1"),
        ("repeat_penalty", 0.0, "a number greater than 0"),
        ("repeat_penalty", -1.0, "a number greater than 0"),
        ("frequency_penalty", math.inf, "a finite number"),
        ("presence_penalty", "1", "a finite number"),
        ("penalty_last_n", -2, "an integer >= -1; -1: all, 0: none"),
        ("seed", -1, "an integer in 0 .. 18446744073709551615, or None"),
        ("seed", 2**64, "an integer in 0 .. 18446744073709551615, or None"),
        ("seed", 1.0, "an integer in 0 .. 18446744073709551615, or None"),
        ("min_keep", -1, "an integer >= 0"),
        ("logit_bias", [(0, 1.0)], "a mapping of token id to number"),
    ],
)
def test_parameters_out_of_range(name: str, value: object, wanted: str) -> None:
    with pytest.raises(SamplingError) as error:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert str(error.value).startswith(f"{name} is {value!r}: must be {wanted}")
    assert isinstance(error.value, GgmlpyError)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        ({"7": 1.0}, "a token id of logit_bias is '7': must be an integer >= 0"),
        ({-1: 1.0}, "a token id of logit_bias is -1"),
        ({3: math.nan}, r"logit_bias\[3\] is nan: must be a number, or -inf"),
        ({3: math.inf}, r"logit_bias\[3\] is inf: must be a number, or -inf"),
    ],
)
def test_bad_bias(bias: Any, message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        SamplingParams(logit_bias=bias)


def test_tokens_outside_the_vocabulary() -> None:
    with pytest.raises(SamplingError, match=r"logit_bias\[4\]: the vocabulary has 4 tokens"):
        sampler(4, logit_bias={4: 1.0})
    s = sampler(4)
    for token in (-1, 4):
        with pytest.raises(SamplingError, match=r"must be in 0 \.\. 3"):
            s.accept(token)
    with pytest.raises(SamplingError, match="n_vocab is 0"):
        sampler(0)


def test_numpy_scalars_are_numbers() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int64(3),  # type: ignore[arg-type]
        seed=np.uint32(9),  # type: ignore[arg-type]
    )
    assert Sampler(params, 4).sample(f32([0, 0, 0, 0])) < 3


def test_defaults_are_those_of_llama_cpp_python() -> None:
    p = SamplingParams()
    assert (p.temperature, p.top_p, p.top_k, p.min_p) == (0.8, 0.95, 40, 0.05)
    assert (p.typical_p, p.repeat_penalty) == (1.0, 1.0)
    assert (p.frequency_penalty, p.presence_penalty, p.penalty_last_n) == (0.0, 0.0, 64)


@pytest.mark.parametrize(
    "options",
    [{"repeat_penalty": 1e-38}, {"frequency_penalty": -3e38}, {"presence_penalty": -3e38}],
)
def test_penalties_beyond_f32_are_an_error_without_numpys_warning(options: dict[str, Any]) -> None:
    s = sampler(4, temperature=0, **options)
    for _ in range(2):
        s.accept(1)
    with pytest.raises(SamplingError, match=r"1 of 4 logits are .inf, the first for token 1"):
        s.sample(f32([0, 3e38, 1, 2]))

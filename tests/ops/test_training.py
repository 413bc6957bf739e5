"""Gradients against central differences in float64, optimisers against their papers' formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ggmlpy
from ggmlpy import Flag, Tensor, ops
from ggmlpy.graph.op import Op
from ggmlpy.ops.attention import FlashAttnExt
from ggmlpy.ops.norm import RmsNorm
from ggmlpy.ops.rope import RopeMode
from ggmlpy.ops.softmax import SoftMax
from ggmlpy.ops.training import CrossEntropyLoss
from tests.ops.values import blank, close, leaf, run, uniform

Array = NDArray[Any]
STEP = 1e-5


def difference(function: Callable[[Array], Array], x: Array, grad: Array) -> Array:
    """The gradient of sum(grad * function(x)) by x, by central differences."""
    found = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        moved = x.astype(np.float64)
        moved[index] += STEP
        above = function(moved)
        moved[index] -= 2 * STEP
        found[index] = ((above - function(moved)) * grad).sum() / (2 * STEP)
    return found


def values(op: Op) -> Callable[[Array], Array]:
    return lambda x: op.reference(x)


def test_silu_back() -> None:
    x, grad = uniform(1, 5, 3, low=-4, high=4), uniform(2, 5, 3)
    want = difference(lambda v: v / (1 + np.exp(-v)), x, grad)
    np.testing.assert_allclose(run(ops.silu_back(leaf(grad), leaf(x))), want, atol=1e-6)


@pytest.mark.parametrize("eps", [1e-6, 0.1])
def test_rms_norm_back(eps: float) -> None:
    x, grad = uniform(3, 7, 3), uniform(4, 7, 3)
    want = difference(values(RmsNorm(eps)), x, grad)
    np.testing.assert_allclose(run(ops.rms_norm_back(leaf(grad), leaf(x), eps)), want, atol=1e-5)


def test_soft_max_back() -> None:
    x, grad = uniform(5, 6, 3), uniform(6, 6, 3)
    op = SoftMax(0.7)
    y = op.reference(x).astype(np.float32)
    got = run(ops.soft_max_ext_back(leaf(grad), leaf(y), 0.7, 0.0))
    np.testing.assert_allclose(got, difference(values(op), x, grad), atol=1e-6)


def labels(seed: int, *ne: int) -> Array:
    raw = uniform(seed, *ne, low=0, high=1)
    shares: Array = (raw / raw.sum(axis=-1, keepdims=True)).astype(np.float32)
    return shares


def test_cross_entropy_and_its_gradient() -> None:
    x, target = uniform(7, 6, 4, low=-3, high=3), labels(8, 6, 4)
    chances = np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)
    close(run(ops.cross_entropy_loss(leaf(x), leaf(target))).reshape(()),
          np.array(-(target * np.log(chances)).sum() / 4))  # fmt: skip
    grad = np.array([1.7], np.float32)
    got = run(ops.cross_entropy_loss_back(leaf(grad), leaf(x), leaf(target)))
    loss = CrossEntropyLoss()
    want = difference(lambda v: loss.reference(v, target), x, np.full((1, 1, 1, 1), 1.7))
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_a_logit_that_cannot_be_adds_nothing_to_the_loss() -> None:
    x, target = uniform(23, 6, 4), labels(24, 6, 4)
    x[..., 2], target[..., 2] = -np.inf, 0
    rest = np.delete(x, 2, axis=3), np.delete(target, 2, axis=3)
    got = run(ops.cross_entropy_loss(leaf(x), leaf(target)))
    np.testing.assert_array_equal(got, run(ops.cross_entropy_loss(*map(leaf, rest))))


def test_get_rows_back_adds_the_rows_of_an_id() -> None:
    grad, ids = uniform(9, 3, 4), np.array([2, 0, 2, 2], np.int32)
    got = run(ops.get_rows_back(leaf(grad), leaf(ids), blank("f32", 3, 5)))
    want = np.zeros((5, 3))
    for row, id in zip(grad[0, 0], ids, strict=True):
        want[id] += row
    close(got[0, 0], want)
    with pytest.raises(ggmlpy.IndexOutOfRange):
        run(ops.get_rows_back(leaf(grad), leaf(ids + 3), blank("f32", 3, 5)))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_flash_attn_back(masked: bool, which: int) -> None:
    size, n_query, n_kv = 3, 2, 4
    q, k = uniform(10, size, n_query, 4), uniform(11, size, n_kv, 2)
    v, grad = uniform(12, size, n_kv, 2), uniform(13, size, n_query, 4)
    mask = np.zeros((1, 1, n_query, n_kv))
    if masked:
        mask[0, 0] = np.triu(np.full((n_query, n_kv), -np.inf), n_kv - n_query + 1)
    op = FlashAttnExt(size**-0.5, 0.0, 0.0, has_mask=True)

    def attended(x: Array) -> Array:
        sources = [q, k, v]
        sources[which] = x
        return op.reference(*sources, mask).transpose(0, 2, 1, 3)  # [S, H, N, D]

    transposed = v.swapaxes(2, 3)  # [M, D, Hk, S]
    got = run(ops.flash_attn_back(leaf(q), leaf(k), leaf(transposed), leaf(grad), masked)).ravel()
    want = difference(attended, (q, k, v)[which], grad)
    if which == 2:
        want = want.swapaxes(2, 3)
    start = (0, q.size, q.size + k.size)[which]
    np.testing.assert_allclose(got[start : start + want.size], want.ravel(), atol=1e-6)


def state(values_: Array) -> Tensor:
    tensor = leaf(values_)
    tensor.flags = Flag.STATE
    return tensor


def test_adamw_updates_three_tensors() -> None:
    w, grad, m = (uniform(seed, 5, 2) for seed in (14, 15, 16))
    v = np.abs(uniform(17, 5, 2))
    alpha, beta1, beta2, eps, decay, step = 0.01, 0.9, 0.99, 1e-8, 0.1, 3
    bias = 1 / (1 - beta1**step), 1 / (1 - beta2**step)
    params = leaf(np.array([alpha, beta1, beta2, eps, decay, *bias], np.float32))
    tensors = [state(x) for x in (w, m, v)]
    y = ops.opt_step_adamw(tensors[0], leaf(grad), tensors[1], tensors[2], params)
    got = run(y)
    new_m = m * beta1 + grad * (1 - beta1)
    new_v = v * beta2 + grad * grad * (1 - beta2)
    want = w - alpha * decay * w - alpha * new_m * bias[0] / (np.sqrt(new_v * bias[1]) + eps)
    close(got, want)
    for tensor, values_ in zip(tensors, (want, new_m, new_v), strict=True):
        close(tensor.numpy().reshape(values_.shape), values_)
    assert y.root is tensors[0]


def test_sgd_updates_in_place() -> None:
    w, grad = uniform(18, 5), uniform(19, 5)
    tensor = state(w)
    close(run(ops.opt_step_sgd(tensor, leaf(grad), leaf(np.array([0.1, 0.5], np.float32)))),
          w * (1 - 0.05) - 0.1 * grad)  # fmt: skip
    close(tensor.numpy(), (w * (1 - 0.05) - 0.1 * grad).reshape(5))


ROPE = (512, 1e4, 0.5, 1.0, 1.1, 32.0, 1.0)


@pytest.mark.parametrize("mode", [RopeMode.NORMAL, RopeMode.NEOX])
def test_rope_back_is_the_transposed_rotation(mode: int) -> None:
    """<rope(x), g> = <x, rope_back(g)>."""
    x, grad, pos = uniform(20, 16, 2, 3), uniform(21, 16, 2, 3), np.array([0, 5, 200], np.int32)
    y = run(ops.rope_ext(leaf(x), leaf(pos), None, 12, mode, *ROPE)).astype(np.float64)
    back = run(ops.rope_ext_back(leaf(grad), leaf(pos), None, 12, mode, *ROPE)).astype(np.float64)
    assert np.isclose((y * grad).sum(), (x * back).sum(), rtol=1e-5)
    sections = (2, 2, 2, 2)
    many = np.arange(12, dtype=np.int32)
    y = run(ops.rope_multi(leaf(x), leaf(many), None, 16, sections, 8, *ROPE)).astype(np.float64)
    back = run(ops.rope_multi_back(leaf(grad), leaf(many), None, 16, sections, 8, *ROPE))
    assert np.isclose((y * grad).sum(), (x * back.astype(np.float64)).sum(), rtol=1e-5)


@pytest.mark.parametrize("mode", [RopeMode.NORMAL, RopeMode.NEOX])
def test_an_offset_moves_what_is_rotated(mode: int) -> None:
    x, pos = uniform(22, 16, 2, 3), np.array([0, 5, 200], np.int32)
    y = ops.rope_ext(leaf(x), leaf(pos), None, 8, mode, *ROPE)
    assert ops.rope_set_offset(y, 6) is y
    got = run(y)
    window = run(ops.rope_ext(leaf(x[..., 6:14]), leaf(pos), None, 8, mode, *ROPE))
    np.testing.assert_array_equal(got[..., 6:14], window)
    np.testing.assert_array_equal(got[..., :6], x[..., :6])
    np.testing.assert_array_equal(got[..., 14:], x[..., 14:])

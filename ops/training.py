"""Ops of training: gradients of other ops, the loss, and steps of optimisers.

Letters: n columns, grad the gradient of the loss by an op's result.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.graph.op import Array, Op, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F16, F32, I32
from ggmlpy.ops import activations
from ggmlpy.ops.rows import check_ids


def _check_rows(**specs: Spec) -> None:
    for name, spec in specs.items():
        require(
            spec.type is F32 and spec.rows_contiguous, f"{name} must be f32 with contiguous rows"
        )
    (first, one), *others = specs.items()
    for name, spec in others:
        require(spec.ne == one.ne, f"{first} and {name} must have the same shape")


@op("silu_back")
@dataclass(frozen=True, slots=True)
class SiluBack(Op):
    """The gradient of silu: y = grad * s * (1 + x * (1 - s)) with s = sigmoid(x).

    grad, x [...] f32 of one shape with contiguous rows  ->  y like them
    """

    in_place = True

    def infer(self, grad: Spec, x: Spec) -> Spec:
        _check_rows(grad=grad, x=x)
        return Spec(x.ne, F32)

    def reference(self, grad: Array, x: Array) -> Array:
        wide = x.astype(np.float64)
        s = activations.sigmoid(wide)
        y: Array = grad.astype(np.float64) * s * (1 + wide * (1 - s))
        return y


@op("rms_norm_back")
@dataclass(frozen=True, slots=True)
class RmsNormBack(Op):
    """The gradient of rms_norm.

    y[i] = (grad[i] - x[i] sum_j x[j] grad[j] / (sum_j x[j]^2 + n eps))
           / sqrt(mean_j x[j]^2 + eps)
    grad, x [n, ...] f32 of one shape with contiguous rows  ->  y like them
    """

    in_place = True

    eps: float

    def infer(self, grad: Spec, x: Spec) -> Spec:
        _check_rows(grad=grad, x=x)
        return Spec(x.ne, F32)

    def reference(self, grad: Array, x: Array) -> Array:
        grad, x = grad.astype(np.float64), x.astype(np.float64)
        n = x.shape[3]
        squares = (x * x).sum(axis=-1, keepdims=True)
        along = (x * grad).sum(axis=-1, keepdims=True) / (squares + n * self.eps)
        y: Array = (grad - x * along) / np.sqrt(squares / n + self.eps)
        return y


@op("get_rows_back")
@dataclass(frozen=True, slots=True)
class GetRowsBack(Op):
    """The gradient of get_rows: the rows of each id are added up.

        y[:, r] = sum of grad[:, i] over all i with ids[i] = r
        grad [n, I] f32 or f16, ids [I] i32  ->  y [n, n_rows] f32

    Raises ShapeError for other shapes and types, IndexOutOfRange when run with an id outside 0 to
    n_rows - 1.
    """

    n_rows: int

    def infer(self, grad: Spec, ids: Spec) -> Spec:
        require(grad.type in (F32, F16), "grad must be f32 or f16")
        require(grad.rows_contiguous, "grad must have contiguous rows")
        require(grad.ne[2:] == (1, 1), "grad must have at most 2 dimensions")
        require(
            ids.type is I32 and ids.contiguous and ids.ne == (grad.ne[1], 1, 1, 1),
            f"ids must be i32 [{grad.ne[1]}]: one for each row of grad",
        )
        return Spec((grad.ne[0], self.n_rows), F32)

    def reference(self, grad: Array, ids: Array) -> Array:
        check_ids(self.name, ids, self.n_rows, "rows")
        y = np.zeros((1, 1, self.n_rows, grad.shape[3]))
        np.add.at(y[0, 0], ids[0, 0, 0], grad[0, 0].astype(np.float64))
        return y


@op("soft_max_back")
@dataclass(frozen=True, slots=True)
class SoftMaxBack(Op):
    """The gradient of soft_max by its source, from its result.

    dx[j] = scale * y[j] * (grad[j] - sum_i y[i] grad[i])
    grad, weights [n, ...] f32 of one shape with contiguous rows, weights the y  ->  dx like them
    """

    in_place = True

    scale: float

    def infer(self, grad: Spec, weights: Spec) -> Spec:
        _check_rows(grad=grad, weights=weights)
        return Spec(weights.ne, F32)

    def reference(self, grad: Array, weights: Array) -> Array:
        grad, y = grad.astype(np.float64), weights.astype(np.float64)
        dx: Array = self.scale * y * (grad - (y * grad).sum(axis=-1, keepdims=True))
        return dx


def _log_softmax(x: Array) -> Array:
    shifted = x - x.max(axis=-1, keepdims=True)
    logs: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logs


@op("cross_entropy_loss")
@dataclass(frozen=True, slots=True)
class CrossEntropyLoss(Op):
    """The mean cross entropy of rows.

    y = -sum over rows and j of labels[j] * log(softmax(logits)[j]) / number of rows
    logits, labels [n, ...] f32 of one shape with contiguous rows  ->  y [1] f32

    A label of 0 adds nothing, even if its logit is -inf, where ggml gives NaN.
    """

    def infer(self, logits: Spec, labels: Spec) -> Spec:
        _check_rows(logits=logits, labels=labels)
        return Spec((1,), F32)

    def reference(self, logits: Array, labels: Array) -> Array:
        n_rows = labels.size // labels.shape[3]
        terms = labels.astype(np.float64) * _log_softmax(logits.astype(np.float64))
        total = np.where(labels == 0, 0, terms).sum()
        return np.full((1, 1, 1, 1), -total / n_rows)


@op("cross_entropy_loss_back")
@dataclass(frozen=True, slots=True)
class CrossEntropyLossBack(Op):
    """The gradient of cross_entropy_loss by the logits, for labels that sum to 1.

    y[j] = grad * (softmax(logits)[j] - labels[j]) / number of rows
    grad [1] f32, logits, labels [n, ...] f32 with contiguous rows  ->  y like logits
    """

    def infer(self, grad: Spec, logits: Spec, labels: Spec) -> Spec:
        require(grad.type is F32 and grad.n_elements == 1, "grad must be f32 with one element")
        _check_rows(logits=logits, labels=labels)
        return Spec(logits.ne, F32)

    def reference(self, grad: Array, logits: Array, labels: Array) -> Array:
        n_rows = labels.size // labels.shape[3]
        chances = np.exp(_log_softmax(logits.astype(np.float64)))
        y: Array = float(grad.reshape(-1)[0]) * (chances - labels.astype(np.float64)) / n_rows
        return y


class Updated(Enum):
    """What a node of opt_step_adamw updates."""

    MOMENT = "m"
    SQUARE = "v"
    WEIGHT = "w"


@op("opt_step_adamw")
@dataclass(frozen=True, slots=True)
class OptStepAdamW(Op):
    """A step of AdamW: three nodes, each of which updates one tensor in place.

        MOMENT   m <- m beta1 + grad (1 - beta1)
        SQUARE   v <- v beta2 + grad^2 (1 - beta2)
        WEIGHT   w <- w (1 - alpha wd) - alpha (m beta1h) / (sqrt(v beta2h) + eps)

    All f32, contiguous and of one shape; params [7] f32 is alpha, beta1, beta2, eps, wd, beta1h,
    beta2h, the last two 1 / (1 - beta^t) at step t. Sources are what is updated, then grad or the
    new m and v, and params. (ggml has one node, which updates all three.) Raises ShapeError for
    other shapes and types. Source: Loshchilov & Hutter, 2019.
    """

    view_of = 0

    updated: Updated

    def source_names(self, n_srcs: int) -> tuple[str, ...]:
        return (self.updated.value, "m", "v", "params") if n_srcs == 4 else ("x", "grad", "params")

    def infer(self, x: Spec, *others: Spec) -> Spec:
        *tensors, params = others
        for spec in (x, *tensors):
            require(spec.type is F32 and spec.contiguous, "tensors must be f32 and contiguous")
            require(spec.ne == x.ne, "tensors must have the same shape")
        require(
            params.type is F32 and params.contiguous and params.n_elements == 7,
            "params must be f32 [7]: alpha, beta1, beta2, eps, wd, beta1h, beta2h",
        )
        return x

    def reference(self, x: Array, *others: Array) -> Array:
        *tensors, params = (array.astype(np.float64) for array in others)
        alpha, beta1, beta2, eps, decay, beta1h, beta2h = params.reshape(-1)
        wide = x.astype(np.float64)
        if self.updated is Updated.MOMENT:
            y: Array = wide * beta1 + tensors[0] * (1 - beta1)
        elif self.updated is Updated.SQUARE:
            y = wide * beta2 + tensors[0] ** 2 * (1 - beta2)
        else:
            m, v = tensors
            y = wide * (1 - alpha * decay) - alpha * (m * beta1h) / (np.sqrt(v * beta2h) + eps)
        return y


@op("opt_step_sgd")
@dataclass(frozen=True, slots=True)
class OptStepSgd(Op):
    """A step of gradient descent with weight decay, in place.

    w <- w (1 - alpha wd) - alpha grad
    w, grad f32 of one shape, contiguous, params [2] f32 is alpha, wd  ->  w
    """

    view_of = 0

    def infer(self, w: Spec, grad: Spec, params: Spec) -> Spec:
        for name, spec in (("w", w), ("grad", grad)):
            require(spec.type is F32 and spec.contiguous, f"{name} must be f32 and contiguous")
        require(w.ne == grad.ne, "w and grad must have the same shape")
        require(
            params.type is F32 and params.contiguous and params.n_elements == 2,
            "params must be f32 [2]: alpha, wd",
        )
        return w

    def reference(self, w: Array, grad: Array, params: Array) -> Array:
        alpha, decay = params.reshape(-1).astype(np.float64)
        y: Array = w.astype(np.float64) * (1 - alpha * decay) - alpha * grad.astype(np.float64)
        return y


_ALIGNMENT = 4  # elements: ggml aligns tensors to 16 bytes


@op("flash_attn_back")
@dataclass(frozen=True, slots=True)
class FlashAttnBack(Op):
    """The gradients of softmax(k q / sqrt(D)) v by q, k and v, one after another.

        q [D, N, Hq, S], k [D, M, Hk, S], v [M, D, Hk, S] (transposed), grad [D, N, Hq, S], all f32
            ->  y [elements of q, k and v, each up to a multiple of 4] f32

    With `masked`, query i sees keys up to i + M - N. Heads of k and v are shared by division, as in
    flash_attn_ext. (ggml declares this op, and refuses to build it since flash_attn_ext changed.)
    Raises ShapeError for other shapes and types.
    """

    masked: bool

    def infer(self, q: Spec, k: Spec, v: Spec, grad: Spec) -> Spec:
        for name, spec in (("q", q), ("k", k), ("v", v), ("grad", grad)):
            require(spec.type is F32, f"{name} must be f32")
        size, n_query, n_head, n_seq = q.ne
        require(grad.ne == q.ne, "grad must have the shape of q")
        require(
            k.ne[0] == size and k.ne[3] == n_seq, f"k must be [{size}, any, any, {n_seq}], as q is"
        )
        require(
            v.ne == (k.ne[1], size, k.ne[2], n_seq),
            f"v must be [{k.ne[1]}, {size}, {k.ne[2]}, {n_seq}]: k's rows as columns",
        )
        require(n_head % k.ne[2] == 0, f"the {n_head} heads of q must be a multiple of k's")
        require(not self.masked or k.ne[1] >= n_query, "masked: k must have a row for each query")
        return Spec((sum(_aligned(spec.n_elements) for spec in (q, k, v)),), F32)

    def reference(self, q: Array, k: Array, v: Array, grad: Array) -> Array:
        q, k, v, grad = (x.astype(np.float64) for x in (q, k, v, grad))
        n_shared = q.shape[1] // k.shape[1]
        keys, values = (np.repeat(x, n_shared, axis=1) for x in (k, v))
        scale = 1 / np.sqrt(q.shape[3])
        scores = scale * q @ keys.swapaxes(2, 3)  # [S, H, N, M]
        if self.masked:
            n_query, n_kv = scores.shape[2:]
            hidden = np.arange(n_kv) > np.arange(n_query)[:, None] + n_kv - n_query
            scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(_log_softmax(scores))
        by_weights = grad @ values  # of v [S, H, D, M]
        along = (weights * by_weights).sum(axis=-1, keepdims=True)
        by_scores = weights * (by_weights - along) * scale
        parts = by_scores @ keys, by_scores.swapaxes(2, 3) @ q, grad.swapaxes(2, 3) @ weights
        flat = [_flat(part, n) for part, n in zip(parts, (1, n_shared, n_shared), strict=True)]
        return np.concatenate(flat).reshape(1, 1, 1, -1)


def _aligned(n: int) -> int:
    return -(-n // _ALIGNMENT) * _ALIGNMENT


def _flat(x: Array, n_shared: int) -> Array:
    """The sum over heads that share one, as a row up to a multiple of 4."""
    n_seq, n_head, *rest = x.shape
    row = x.reshape(n_seq, n_head // n_shared, n_shared, *rest).sum(axis=2).reshape(-1)
    return np.pad(row, (0, _aligned(len(row)) - len(row)))


@checked
def silu_back(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_silu_back`: a the gradient, b silu's source; see SiluBack."""
    return SiluBack().node(a, b)


@checked
def rms_norm_back(a: Tensor, b: Tensor, eps: float) -> Tensor:
    """`ggml_rms_norm_back`: a the gradient, b rms_norm's source; see RmsNormBack."""
    return RmsNormBack(eps).node(a, b)


@checked
def get_rows_back(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """`ggml_get_rows_back`: a the gradient, b the ids, c get_rows' source, of which only the shape
    counts; see GetRowsBack."""
    require(
        a.ne[0] == c.ne[0] and c.ne[2:] == (1, 1),
        f"get_rows_back: c must be [{a.ne[0]}, n], it is {c.spec.shape_text}",
    )
    return GetRowsBack(int(c.ne[1])).node(a, b)


@checked
def soft_max_ext_back(a: Tensor, b: Tensor, scale: float, max_bias: float) -> Tensor:
    """`ggml_soft_max_ext_back`: a the gradient, b soft_max's result; see SoftMaxBack.

    max_bias must be 0, as in ggml.
    """
    require(max_bias == 0, f"soft_max_ext_back: max_bias is {max_bias:g}: it must be 0")
    return SoftMaxBack(scale).node(a, b)


@checked
def cross_entropy_loss(a: Tensor, b: Tensor) -> Tensor:
    """`ggml_cross_entropy_loss`: a logits, b labels; see CrossEntropyLoss."""
    return CrossEntropyLoss().node(a, b)


@checked
def cross_entropy_loss_back(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """`ggml_cross_entropy_loss_back`: a the gradient, b logits, c labels; see
    CrossEntropyLossBack."""
    return CrossEntropyLossBack().node(a, b, c)


@checked
def opt_step_adamw(a: Tensor, grad: Tensor, m: Tensor, v: Tensor, adamw_params: Tensor) -> Tensor:
    """`ggml_opt_step_adamw`: updates a, m and v, and returns a; see OptStepAdamW."""
    moment = OptStepAdamW(Updated.MOMENT).node(m, grad, adamw_params)
    square = OptStepAdamW(Updated.SQUARE).node(v, grad, adamw_params)
    return OptStepAdamW(Updated.WEIGHT).node(a, moment, square, adamw_params)


@checked
def opt_step_sgd(a: Tensor, grad: Tensor, sgd_params: Tensor) -> Tensor:
    """`ggml_opt_step_sgd`: updates a, and returns it; see OptStepSgd."""
    return OptStepSgd().node(a, grad, sgd_params)


@checked
def flash_attn_back(q: Tensor, k: Tensor, v: Tensor, d: Tensor, masked: bool) -> Tensor:
    """`ggml_flash_attn_back`: d the gradient of the result; see FlashAttnBack."""
    return FlashAttnBack(masked).node(q, k, v, d)

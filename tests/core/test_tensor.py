from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ggmlpy
from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.errors import GgmlpyError, ShapeError
from ggmlpy.graph.quants import from_float, to_float
from ggmlpy.graph.tensor import Flag, from_bytes, from_numpy, zeros
from ggmlpy.graph.types import BF16, BY_ID, F32, Q4_0, TYPES, type_of


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=4, max_side=5)))
def test_numpy_round_trip(array: np.ndarray) -> None:
    tensor = from_numpy(array)
    assert tensor.ne == (*array.shape[::-1], 1, 1, 1)[:4]
    # Leading ones are trailing ones in ne order, which numpy() leaves out.
    np.testing.assert_array_equal(tensor.numpy().reshape(array.shape), array)
    assert tensor.tobytes() == array.tobytes()


def test_nb_is_bytes_fastest_first() -> None:
    assert from_numpy(np.zeros((2, 3, 5), np.float16)).nb == (2, 10, 30, 60)
    assert from_bytes(bytes(18 * 6), "q4_0", (64, 3)).nb == (18, 36, 108, 108)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "q8_0", "q4_0", "i32"])
def test_from_bytes_gives_values_back(name: str) -> None:
    type = type_of(name)
    values = np.arange(-64, 64, dtype=np.float32).reshape(2, 64)
    raw = from_float(values, type)
    tensor = from_bytes(raw, name, (64, 2))
    np.testing.assert_array_equal(tensor.numpy(), to_float(raw, type))
    assert tensor.tobytes() == raw.tobytes()
    assert Flag.WEIGHT in tensor.flags


def test_type_names_are_read_in_either_case() -> None:
    assert type_of("Q4_k") is TYPES["q4_K"]
    assert all(type_of(t.name) is t and BY_ID[t.id] is t for t in TYPES.values())
    with pytest.raises(ShapeError, match="'q9_z'"):
        type_of("q9_z")


def test_types_survive_pickling_as_the_same_object() -> None:
    import pickle

    assert pickle.loads(pickle.dumps(Q4_0)) is Q4_0


def test_big_endian_arrays_are_taken_by_value() -> None:
    values = np.arange(5, dtype=">f4")
    np.testing.assert_array_equal(from_numpy(values).numpy(), np.arange(5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_bytes(bytes(17), "q4_0", (32,)), "takes 18 bytes, not 17"),
        (lambda: from_bytes(bytes(18), "q4_0", (16,)), "blocks of 32 elements, a row has 16"),
        (lambda: from_numpy(np.zeros((1, 1, 1, 1, 1), np.float32)), "1 to 4 counts"),
        (lambda: from_numpy(np.zeros((0, 3), np.float32)), "at least 1"),
        (lambda: from_numpy(np.zeros(3, np.complex64)), "no tensor type holds numpy complex64"),
        (lambda: zeros("f32", (3, -1)), "at least 1"),
    ],
)
def test_bad_leaves(make: object, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        make()  # type: ignore[operator]


def test_shape_errors_name_scope_op_and_shapes() -> None:
    weight = from_numpy(np.zeros((4096, 14), np.float32), name="ffn_down")
    x = from_numpy(np.zeros((7, 12), np.float32))
    with scope("blk.3"), pytest.raises(ShapeError) as caught:
        ops.mul_mat(weight, x)
    text = str(caught.value)
    assert text.startswith("blk.3.mul_mat: ")
    assert "ffn_down is f32 [14, 4096]" in text
    assert "f32 [12, 7]" in text


def test_scopes_nest_and_end() -> None:
    x = from_numpy(np.zeros(4, np.float32))
    with scope("blk"), scope("ffn"):
        assert ops.silu(x).name == "blk.ffn.silu"
        assert ops.silu(x).named("gate").name == "blk.ffn.gate"
    with scope(layer=3):
        assert ops.silu(x).named("gate").name == "gate-3"
        with scope("ffn"):
            y = ops.silu(x)
            assert y.name == "ffn.silu-3"
            assert ops.reshape_2d(y, 2, 2).name == "ffn.silu-3 (reshaped)"
            with scope(layer=12):
                assert ops.silu(x).name == "ffn.silu-12"
        with scope():
            assert ops.silu(x).name == "silu-3"
    assert ops.silu(x).name == ""


def test_nothing_is_computed_before_compute() -> None:
    y = ops.silu(from_numpy(np.ones(4, np.float32)))
    with pytest.raises(GgmlpyError, match="no value yet"):
        y.numpy()
    with pytest.raises(GgmlpyError, match="no value yet"):
        ops.reshape_2d(y, 2, 2).numpy()


def test_a_view_of_a_leaf_has_its_values_at_once() -> None:
    x = from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4))
    np.testing.assert_array_equal(ops.transpose(x).numpy(), x.numpy().T)
    np.testing.assert_array_equal(ops.view_1d(x, 3, 4 * 4).numpy(), [4, 5, 6])


def test_bytes_of_a_strided_tensor_are_refused() -> None:
    x = from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4))
    with pytest.raises(ShapeError, match=r"ops\.cont"):
        ops.transpose(x).tobytes()


@given(st.floats(-8, 8, width=32), hnp.arrays(np.float32, 5, elements=st.floats(-8, 8, width=32)))
def test_operators(s: float, a: np.ndarray) -> None:
    x, y = from_numpy(a), from_numpy(a[::-1].copy())
    checks = [
        (x + y, a + a[::-1]),
        (x - y, a - a[::-1]),
        (x * y, a * a[::-1]),
        (x * s, a * np.float32(s)),
        (s * x, a * np.float32(s)),
        (x + s, a + np.float32(s)),
        (x - s, a - np.float32(s)),
        (-x, -a),
    ]
    got = ggmlpy.compute(*(t for t, _ in checks), backend="reference")
    for value, (_, want) in zip(got, checks, strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-6, atol=1e-6)


def test_methods() -> None:
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    x = from_numpy(a)
    reshaped, permuted, cast = ggmlpy.compute(
        x.reshape(12, 2), x.permute(1, 0, 2, 3).cont(), x.cast("bf16"), backend="reference"
    )
    np.testing.assert_array_equal(reshaped, a.reshape(2, 12))
    np.testing.assert_array_equal(permuted, a.transpose(0, 2, 1))
    np.testing.assert_array_equal(cast, a)
    assert x.cast("bf16").type is BF16
    assert (x / 2.0).type is F32

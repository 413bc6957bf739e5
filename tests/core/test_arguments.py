"""What the package's own functions do with wrong arguments: a typed error of one line."""

from __future__ import annotations

import inspect
import math
import pickle
import typing
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ggmlpy
from ggmlpy import ArgumentError, Context, Flag, GgmlpyError, Graph, Llama, SamplingParams, ops
from ggmlpy.common.arguments import checked

X = ggmlpy.from_numpy(np.ones(32, np.float32))
Y = ops.neg(X)
MODEL = ggmlpy.packaged_model()

VALUES: list[Any] = [
    "a", "", None, [], [1], ["a"], {}, (1, 2), object(), b"x", True, np.bool_(True), 0, -1, 3, 1.5,
    2**63, -(2**70), 10**400, math.nan, math.inf, 1e300, 1j, np.array(3), np.ones(3), int, X,
    np.array([object()]), np.array(["a"]), memoryview(b"abcdefgh")[::2], np.zeros(1, "m8[s]"),
]  # fmt: skip

FUNCTIONS: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "from_bytes": (
        ggmlpy.from_bytes,
        {"raw": bytes(128), "type": "f32", "ne": (32,), "name": "x", "flags": Flag.NONE},
    ),
    "from_numpy": (ggmlpy.from_numpy, {"array": np.ones(3), "name": "x"}),
    "zeros": (ggmlpy.zeros, {"type": "f32", "ne": (32,), "name": "x", "flags": Flag.NONE}),
    "get_backend": (ggmlpy.get_backend, {"name": "null", "n_threads": None}),
    "compute": (
        lambda tensor, **options: ggmlpy.compute(tensor, **options),
        {"tensor": Y, "backend": "reference", "n_threads": None},
    ),
    "pin": (lambda value: ggmlpy.compute(Y, backend="null", pin=lambda _: value), {"value": None}),
    "Graph": (lambda output: str(Graph(output)), {"output": Y}),
    "to_html": (Graph(Y).to_html, {"title": "y"}),
    "named": (ops.neg(X).named, {"name": "y"}),
    "open": (ggmlpy.GGUFFile.open, {"path": MODEL}),
    "SamplingParams": (SamplingParams, {name: getattr(SamplingParams(), name) for name in (
        "temperature", "top_p", "top_k", "min_p", "typical_p", "repeat_penalty", "penalty_last_n",
        "frequency_penalty", "presence_penalty", "seed", "logit_bias", "min_keep")}),
}  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_whatever_is_given_is_refused_or_taken(function: str) -> None:
    call, arguments = FUNCTIONS[function]
    refused = 0
    for name in arguments:
        for value in VALUES:
            try:
                call(**{**arguments, name: value})
            except GgmlpyError as error:
                refused += 1
                assert "\n" not in str(error)
    assert refused > 5 * len(arguments)


KINDS: list[Any] = ["a", [], {}, object(), 1.5, -3, 2**70, 1j, np.ones(3), X, math.nan]
SIZES = {name: KINDS for name in ("n_ctx", "n_ctx_seq", "n_ubatch", "n_seq_max", "n_threads")}
OPTIONS: dict[str, list[Any]] = SIZES | {
    "kv_unified": KINDS, "kv_layout": KINDS, "flash_attn": KINDS, "type_k": KINDS, "type_v": KINDS,
    "backend": KINDS,
}  # fmt: skip
CONSTRUCTORS: dict[str, tuple[Callable[..., object], dict[str, list[Any]]]] = {
    "Llama": (
        lambda model_path=MODEL, **options: Llama(model_path, **options),
        OPTIONS | {"n_batch": KINDS, "verbose": KINDS, "model_path": [*KINDS[1:], None, True],
                   "seed": ["a", [], {}, object(), 1.5, 2**70, 1j, np.ones(3), X, math.nan]},
    ),
    "Context.open": (
        lambda path=MODEL, **options: Context.open(path, **{"n_ctx": 64, **options}),
        OPTIONS | {"path": [*KINDS[1:], None, True]},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("made", "name"), [(made, name) for made, (_, table) in CONSTRUCTORS.items() for name in table]
)
def test_what_no_model_is_opened_with(made: str, name: str) -> None:
    call, table = CONSTRUCTORS[made]
    for value in table[name]:
        with pytest.raises(GgmlpyError) as caught:
            call(**{name: value})
        message = str(caught.value)
        assert "\n" not in message
        assert name.removeprefix("model_") in message or name == "backend", message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ggmlpy.compute(Y, n_threads="2"),  # type: ignore[call-overload]
         "compute: n_threads is a str: it must be a whole number or None"),
        (lambda: ggmlpy.compute(Y, backend=3),  # type: ignore[call-overload]
         "compute: backend is an int: it must be a string or a Backend"),
        (lambda: ggmlpy.from_bytes("abc", "f32", (1,)),  # type: ignore[arg-type]
         "from_bytes: raw is a str: it must be bytes, a bytearray, a memoryview or a numpy array"),
        (lambda: ggmlpy.zeros("f32", (4, 1.5)),  # type: ignore[arg-type]
         "zeros: ne[1] is a float: it must be a whole number"),
        (lambda: ggmlpy.from_numpy([1.0]),  # type: ignore[arg-type]
         "from_numpy: array is a list: it must be a numpy array"),
        (lambda: ggmlpy.GGUFFile.open(7),  # type: ignore[arg-type]
         "GGUFFile.open: path is an int: it must be a string, bytes or a path"),
    ],
)  # fmt: skip
def test_messages(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value) == message


def test_elements_of_elements_and_of_unions() -> None:
    @checked
    def taken(rows: Sequence[Sequence[int]] = (), either: str | Sequence[int] = "") -> None: ...

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"rows": [[1], [2, "x"]]}, "rows[1][1] is a str: it must be a whole number"),
        ({"rows": [[1], 2]}, "rows[1] is an int: it must be a list, a tuple or an array"),
        ({"either": [1, None]}, "either[1] is None: it must be a whole number"),
        ({"either": 3}, "either is an int: it must be a string or a list, a tuple or an array"),
    ]
    for arguments, message in wrong:
        with pytest.raises(ArgumentError) as caught:
            taken(**arguments)
        assert str(caught.value).endswith(f"taken: {message}")
    taken(np.ones((2, 2), int), "text")  # type: ignore[arg-type]


def test_truth_is_a_bool_or_numpys() -> None:
    @checked
    def taken(flag: bool) -> bool:
        return flag

    for value in (True, np.False_):
        assert taken(value) is bool(value)  # type: ignore[arg-type]
    others: list[Any] = [1, 0.0, None, "no", np.ones(2), np.array(True)]
    for other in others:
        with pytest.raises(ArgumentError, match=r"it must be True or False$"):
            taken(other)


def test_the_signature_stays() -> None:
    assert list(inspect.signature(Llama).parameters)[:2] == ["model_path", "n_ctx"]
    assert str(inspect.signature(Context.decode)).startswith("(self, tokens: 'Sequence[int]', *, ")
    assert pickle.loads(pickle.dumps(ggmlpy.zeros)) is ggmlpy.zeros


def test_annotations_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    hints = typing.get_type_hints

    def read(function: Any, **options: Any) -> dict[str, Any]:
        reads.append(function)
        return hints(function, **options)

    monkeypatch.setattr(typing, "get_type_hints", read)

    @checked
    def taken(a: int) -> int:
        return a

    assert [taken(1), taken(a=2)] == [1, 2]
    assert len(reads) == 1


def test_a_checked_function() -> None:
    """Numbers become Python's own; what `*args` and `**kwargs` take is not looked at."""

    @checked
    def taken(a: int, *rest: Any, b: float = 2.0, **more: Any) -> tuple[Any, ...]:
        """Its own words."""
        return a, rest, b, more

    assert taken.__doc__ == "Its own words."
    one: Any = np.int64(1)
    assert taken(one, "x", b=3, c="y") == (1, ("x",), 3.0, {"c": "y"})
    assert [type(value) for value in taken(one, b=3)[::2]] == [int, float]
    with pytest.raises(ArgumentError, match=r"taken: b is a str: it must be a number$"):
        taken(1, 2, b="3")  # type: ignore[arg-type]

"""The public functions of ops with arguments of any kind: a tensor, or one of ggmlpy's errors."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ggmlpy
from ggmlpy import Graph, compute, from_bytes, from_numpy, ops, zeros
from ggmlpy.errors import GgmlpyError
from ggmlpy.graph.tensor import Tensor
from tests.fuzz import values
from tests.fuzz.case import Kind, Limits, Recipe, Wrong

_MOST = 1 << 20  # elements of a result that is computed
_OTHERS: dict[str, Callable[..., Any]] = {
    "from_bytes": from_bytes,
    "from_numpy": from_numpy,
    "zeros": zeros,
    "compute": compute,
    "Graph": Graph,
    "scope": ggmlpy.scope,
}
_NAMES = (*ops.__all__, *_OTHERS)
_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "i32", "i64", "i8", "f64", "iq4_nl")


class Arguments(Kind):
    """One call."""

    name = "arguments"
    about = "functions of ops called with anything: a tensor, or one of ggmlpy's errors"
    n_quick = 3000
    share = 0.5
    group = 64
    limits = Limits(memory_mb=512)
    parts = ("arguments",)

    def draw(self, rng: random.Random) -> Recipe:
        name = rng.choice(_NAMES)
        function = _function(name)
        arguments = []
        for parameter in inspect.signature(function).parameters.values():
            if rng.random() < 0.03:
                break
            if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                arguments.append(_argument(rng, parameter))
        recipe: Recipe = {"function": name, "arguments": arguments}
        if name == "compute":
            recipe["keywords"] = {"n_threads": values.anything(rng)}
        return recipe | {"backend": rng.choice(("cpu", "reference"))}

    def run(self, recipe: Recipe, folder: Path) -> None:
        name = recipe["function"]
        function = _function(name)
        parameters = inspect.signature(function).parameters.values()
        required = [p for p in parameters if p.default is p.empty and p.kind <= 1]
        if len(recipe["arguments"]) < len(required):
            return  # Python's own TypeError
        result = function(*map(made, recipe["arguments"]), **recipe.get("keywords", {}))
        if isinstance(result, Tensor):
            repr(result)
            if result.spec.n_elements <= _MOST:
                compute(result, backend=recipe["backend"])
        elif name in ops.__all__:
            raise Wrong("no tensor", f"{name} gives {type(result).__name__}")

    def simpler(self, recipe: Recipe) -> Iterator[Recipe]:
        yield recipe | {"backend": "reference"}
        for i, argument in enumerate(recipe["arguments"]):
            if isinstance(argument, dict) and argument.get("tensor") != ["f32", [4, 1, 1, 1]]:
                simple = {"tensor": ["f32", [4, 1, 1, 1]]}
                arguments = recipe["arguments"]
                yield recipe | {"arguments": [*arguments[:i], simple, *arguments[i + 1 :]]}


def _function(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = _OTHERS.get(name) or getattr(ops, name)
    return found


def _argument(rng: random.Random, parameter: inspect.Parameter) -> Any:
    """Mostly what fits; as JSON, tensors and arrays as dicts."""
    if rng.random() < 0.12:
        return rng.choice((
            values.anything(rng), {"tensor": _tensor(rng)}, {"array": [2, 3]}, {"bytes": 8},
            {"numpy": rng.choice(("int64", "float32", "bool"))}, {"complex": 1}, {"circle": 2},
        ))  # fmt: skip
    annotation = str(parameter.annotation)
    if "Tensor" in annotation and "TensorType" not in annotation:
        return {"tensor": _tensor(rng)}
    if parameter.name == "type":
        return rng.choice((*_TYPES, "q9_9", ""))
    if "Sequence" in annotation:
        return [rng.choice((1, 2, 32, 256, *values.INTEGERS)) for _ in range(rng.randint(0, 5))]
    if annotation in ("int", "float"):
        return rng.choice((0, 1, 2, 3, 4, 8, 16, 32, 64, 128)) if rng.random() < 0.75 else (
            values.number(rng)
        )  # fmt: skip
    return rng.choice(({"bytes": rng.choice((0, 4, 18, 128))}, {"array": [3, 32]}))


def _tensor(rng: random.Random) -> list[Any]:
    """[type, ne, and axes if it is permuted]"""
    ne = [rng.choice((1, 2, 4, 32, 64, 256)), *(rng.choice((1, 1, 2, 3, 4)) for _ in range(3))]
    described: list[Any] = [rng.choice(("f32", "f32", "f32", *_TYPES)), ne]
    if rng.random() < 0.2:
        described.append(rng.sample(range(4), 4))
    return described


def _circle(n: int) -> Tensor:
    """A node that is its own source, n nodes back."""
    first = last = ops.neg(zeros("f32", (4,)))
    for _ in range(n - 1):
        last = ops.neg(last)
    first.src = (last,)
    return last


def made(described: Any) -> Any:
    """The argument that a recipe says."""
    if not isinstance(described, dict) or len(described) != 1:
        return described
    ((kind, value),) = described.items()
    try:
        if kind == "tensor":
            type, ne, *axes = value
            tensor = zeros(type, ne)
            return ops.permute(tensor, *axes[0]) if axes else tensor
    except (GgmlpyError, ValueError, TypeError):
        return zeros("f32", (4,))
    if kind == "circle":
        return _circle(value)
    if kind == "array":
        return np.ones(value, np.float32)
    if kind == "bytes":
        return bytes(value)
    if kind == "numpy":
        return np.dtype(value).type(1)
    return 1j if kind == "complex" else described

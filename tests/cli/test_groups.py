"""Options that are taken together: a dataclass as options of its own, in every command alike."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

from ggmlpy.cli import options
from ggmlpy.cli.batched_bench import batched_bench
from ggmlpy.cli.bench import bench
from ggmlpy.cli.chat import chat
from ggmlpy.cli.generate import generate
from ggmlpy.cli.groups import BenchOptions, ModelOptions, SamplingOptions, grouped
from ggmlpy.llama import Llama


@pytest.mark.parametrize(
    ("command", "group"),
    [
        (generate, ModelOptions),
        (generate, SamplingOptions),
        (chat, ModelOptions),
        (chat, SamplingOptions),
        (bench, BenchOptions),
        (batched_bench, BenchOptions),
    ],
)
def test_commands_have_the_options_of_their_groups(command: Any, group: Any) -> None:
    parameters = inspect.signature(command).parameters
    for field in fields(group):
        assert parameters[field.name].default == field.default
    assert group not in [p.annotation for p in parameters.values()]


def test_a_command_gets_its_group_as_one_value() -> None:
    got: dict[str, Any] = {}

    @grouped
    def command(prompt: options.Prompt = "x", *, sampling: SamplingOptions) -> None:
        """What it does."""
        got.update(prompt=prompt, sampling=sampling)

    given = {f.name: f.default for f in fields(SamplingOptions)}
    command(prompt="y", **{**given, "top_k": 3})
    assert got == {"prompt": "y", "sampling": SamplingOptions(top_k=3)}
    assert command.__doc__ == "What it does."
    assert next(iter(inspect.signature(command).parameters)) == "prompt"


def test_sampling_options_are_those_of_a_completion() -> None:
    accepted = inspect.signature(Llama.create_completion).parameters
    for name, default in SamplingOptions().as_arguments().items():
        assert name in accepted
        if name != "seed":
            assert accepted[name].default == default


def test_a_seed_is_drawn_once_and_told_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.randbits", lambda n: 2**n - 7)
    assert SamplingOptions().seeded().telling_seed == 2**32 - 7
    assert SamplingOptions(seed=3).seeded().telling_seed == 3
    assert SamplingOptions(seed=3, temperature=0.0).telling_seed is None

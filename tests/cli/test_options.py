"""Groups of options: a dataclass as options of its own, the same in every command."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ggmlpy.cli import options
from ggmlpy.cli.batched_bench import batched_bench
from ggmlpy.cli.bench import bench
from ggmlpy.cli.chat import chat
from ggmlpy.cli.command import command
from ggmlpy.cli.generate import generate
from ggmlpy.cli.options import BenchOptions, ModelOptions, PlacementOptions
from ggmlpy.cli.sampling_options import SamplingOptions
from ggmlpy.llama import Llama


@pytest.mark.parametrize(
    ("of", "group"),
    [
        (generate, ModelOptions),
        (generate, SamplingOptions),
        (chat, ModelOptions),
        (chat, SamplingOptions),
        (batched_bench, BenchOptions),
    ],
)
def test_commands_have_the_options_of_their_groups(of: click.Command, group: type) -> None:
    context = click.Context(of)
    defaults = {p.name: p.get_default(context) for p in of.params}
    for field in fields(group):
        assert defaults[field.name] == field.default


def test_options_of_a_grid_have_lists_of_the_defaults() -> None:
    context = click.Context(bench)
    several = {p.name: p for p in bench.params if getattr(p, "multiple", False)}
    for field in fields(BenchOptions):
        if field.name in ("n_batch", "n_ubatch", "type_k", "type_v", "flash_attn", "n_gpu_layers"):
            assert several[field.name].process_value(context, None) == [field.default]


def test_a_command_gets_its_group_as_one_value() -> None:
    got: dict[str, Any] = {}

    @command
    @options.prompt
    @options.sampling_options
    def write(prompt: str, sampling: SamplingOptions) -> None:
        """What it does."""
        got.update(prompt=prompt, sampling=sampling)

    write.main(["-p", "y", "--top-k", "3"], standalone_mode=False)
    assert got == {"prompt": "y", "sampling": SamplingOptions(top_k=3)}
    assert write.help == "What it does."
    assert [p.name for p in write.params] == ["prompt", *(f.name for f in fields(SamplingOptions))]


def test_sampling_options_are_those_of_a_completion() -> None:
    accepted = inspect.signature(Llama.create_completion).parameters
    for name, default in SamplingOptions().as_arguments().items():
        assert name in accepted
        if name != "seed":
            assert accepted[name].default == default


def test_sequence_breakers_take_the_place_of_the_default_ones() -> None:
    def breakers(*texts: str) -> tuple[str, ...]:
        options = SamplingOptions(dry_sequence_breakers=texts).as_arguments()
        return tuple(options["dry_sequence_breakers"])

    assert SamplingOptions().as_arguments()["dry_sequence_breakers"] == ("\n", ":", '"', "*")
    assert breakers(r"\n", r"\x41\\n\t\q") == ("\n", "A\\n\t\\q")
    assert breakers("a", "none") == ()
    assert breakers("a", "none", "b") == ("b",)


def test_a_seed_is_drawn_once_and_told_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.randbits", lambda n: 2**n - 7)
    assert SamplingOptions().seeded().effective_seed == 2**32 - 7
    assert SamplingOptions(seed=3).seeded().effective_seed == 3
    assert SamplingOptions(seed=3, temperature=0.0).effective_seed is None
    assert SamplingOptions(seed=3, temperature=0.0, dynatemp_range=1.0).effective_seed == 3
    assert SamplingOptions(seed=3, temperature=0.0, sampler_seq=("top_k",)).effective_seed == 3


def test_experts_and_feed_forward_weights_on_the_host() -> None:
    """The tensors that llama.cpp's flags choose, beside those of -ot, which come first."""

    kinds = ("attn_q", "ffn_up", "ffn_gate", "ffn_gate_inp", "ffn_norm", "ffn_down_shexp")
    experts = ("ffn_up_exps", "ffn_gate_up_exps", "ffn_down_chexps")
    names = [f"blk.{i}.{kind}.weight" for i in (0, 1, 2, 11) for kind in (*kinds, *experts)]

    def on_host(**given: Any) -> list[str]:
        patterns = PlacementOptions(**given).tensors
        assert set(patterns.values()) <= {"host", "cuda"}
        places = {
            name: next((place for p, place in patterns.items() if re.search(p, name)), "")
            for name in names
        }
        return [name for name, place in places.items() if place == "host"]

    assert on_host() == []
    assert on_host(cpu_moe=True) == [n for n in names if "exps" in n]
    assert on_host(n_cpu_moe=2) == [n for n in names if "exps" in n and n[4:6] in ("0.", "1.")]
    dense = [n for n in names if n.split(".")[2] in ("ffn_up", "ffn_gate")]
    assert on_host(n_cpu_ffn=1) == [n for n in dense if n[4:6] == "0."]
    assert on_host(n_cpu_ffn=12) == dense
    first = {"blk.1.*exps": "cuda"}
    assert on_host(n_cpu_moe=2, override_tensors=first) == [
        n for n in names if "exps" in n and n[4:6] == "0."
    ]


@given(st.integers(1, 10**6), st.integers(0, 10**6))
@example(100, 99)
@example(100, 100)
def test_the_first_layers_are_those_below_the_number(n: int, layer: int) -> None:
    (pattern,) = PlacementOptions(n_cpu_ffn=n).tensors
    for each in (layer, n - 1, n):
        assert bool(re.search(pattern, f"blk.{each}.ffn_up.weight")) == (each < n)


def test_any_number_of_layers_takes_a_short_pattern() -> None:
    (pattern,) = PlacementOptions(n_cpu_moe=10**23 - 1).tensors
    assert re.search(pattern, "blk.123.ffn_up_exps.weight")
    assert len(pattern) < 2000

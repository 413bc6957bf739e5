"""Options that several commands take together: one dataclass each, and how a command takes it."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, get_type_hints

from ggmlpy.cli import options

if TYPE_CHECKING:
    from ggmlpy.bench.bench import Setup

FRESH_SEED = -1


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer shall see it: a parameter that is a dataclass as its fields.

    Their annotations and defaults are those of the options; the command gets the dataclass.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if is_dataclass(hint):
            groups[parameter.name] = hint
            parameters += _options_of(hint)
        else:
            parameters.append(_parameter(parameter.name, parameter.default, hint))

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{f.name: given.pop(f.name) for f in fields(group)})
        command(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _options_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [_parameter(f.name, f.default, hints[f.name]) for f in fields(group)]


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is opened to write with it."""

    n_ctx: options.ContextSize = 0
    n_ubatch: options.UBatchSize = 512
    n_threads: options.Threads = None
    backend: options.BackendName = "auto"
    type_k: options.TypeK = "f16"
    type_v: options.TypeV = "f16"
    flash_attn: options.FlashAttn = "auto"
    n_gpu_layers: options.GpuLayers = -1
    override_tensors: options.OverrideTensors = ""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """How a model is opened to measure it, but for the threads."""

    n_batch: options.BatchSize = 2048
    n_ubatch: options.UBatchSize = 512
    backend: options.BackendName = "auto"
    type_k: options.TypeK = "f16"
    type_v: options.TypeV = "f16"
    flash_attn: options.FlashAttn = "auto"
    n_gpu_layers: options.GpuLayers = -1
    override_tensors: options.OverrideTensors = ""

    def setup(self, n_threads: int | None) -> Setup:
        from ggmlpy.bench.bench import Setup

        return Setup(
            n_batch=self.n_batch,
            n_ubatch=self.n_ubatch,
            n_threads=n_threads,
            backend=self.backend,
            type_k=self.type_k,
            type_v=self.type_v,
            flash_attn=self.flash_attn != "off",
            n_gpu_layers=self.n_gpu_layers,
            override_tensors=options.override_tensors(self.override_tensors),
        )


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How the next token is chosen. The names are those of `Llama.create_completion`."""

    temperature: options.Temperature = 0.8
    top_k: options.TopK = 40
    top_p: options.TopP = 0.95
    min_p: options.MinP = 0.05
    typical_p: options.Typical = 1.0
    repeat_penalty: options.RepeatPenalty = 1.0
    frequency_penalty: options.FrequencyPenalty = 0.0
    presence_penalty: options.PresencePenalty = 0.0
    seed: options.Seed = FRESH_SEED

    def seeded(self) -> SamplingOptions:
        """With a seed that is known, so that it can be told and the text had again."""
        return replace(self, seed=secrets.randbits(32)) if self.seed == FRESH_SEED else self

    @property
    def telling_seed(self) -> int | None:
        """The seed, if it decides anything: at temperature 0 nothing is drawn."""
        return self.seed if self.temperature > 0 else None

    def as_arguments(self) -> dict[str, Any]:
        """For `create_completion`."""
        return asdict(self)

"""Options that several commands share: decorators, and groups of options as dataclasses.

Names and defaults are llama.cpp's where it has the option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ggmlpy.cli.command import flag, option
from ggmlpy.cli.groups import grid, group, setting
from ggmlpy.cli.hub import or_from_hub
from ggmlpy.cli.sampling_options import SamplingOptions
from ggmlpy.cli.types import FileName, Layers, OnOff, Overrides, Real, Switch, Threads, Whole

if TYPE_CHECKING:
    from ggmlpy.bench.bench import Setup
    from ggmlpy.gguf.overrides import Scalar
    from ggmlpy.models.rope_overrides import RopeOverrides

MODEL = "Model and machine"
METADATA = "Metadata and rotary embeddings"
SAMPLING = "Sampling"
FILE = FileName()

# Names of tensors, behind those of their layers.
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch)?exps"
_FEED_FORWARD = r"\.ffn_(up|down|gate)\."
HOST = "host"  # the memory of any backend that computes on the host

_N_THREADS = ("-t --threads N", "CPU threads.")
_ONE_PER_CORE: dict[str, Any] = {"type": Threads(), "show_default": "one per core"}
_TYPE_K = (
    "-ctk --cache-type-k TYPE",
    "Type of the K cache: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl.",
)
_TYPE_V = ("-ctv --cache-type-v TYPE", "Type of the V cache: one of the same.")
_KV_ROTATION = (
    "-kvr --kv-rotation on|off|auto",
    "Store K and V of quantised types rotated, which they lose less by; auto: where heads have a"
    " multiple of 64 elements; on: a multiple of 32.",
)
_FLASH_ATTN = (
    "-fa --flash-attn on|off|auto",
    "Attention as one fused node (on), or as separate ones (off); auto is on.",
)
_AS_IN_FILE: dict[str, Any] = {"section": METADATA, "show_default": "as in the file"}
_SWITCH: dict[str, Any] = {"type": Switch(), "is_flag": False, "flag_value": "on"}  # `-fa` alone

file_or_packaged: dict[str, Any] = {"required": False, "type": FILE}  # an argument
_model_option = option(
    "model",
    "-m --model FILE",
    "The GGUF file. Of a split model, its first file.",
    type=FILE,
    show_default="the small model in the package",
)
prompt = option("prompt", "-p --prompt TEXT", "The text; - reads it from stdin.")
prompt_file = option(
    "file",
    "-f --file FILE",
    "Read the text from a file; one newline at its end is removed.",
    type=FILE,
)
binary_file = option(
    "binary_file",
    "-bf --binary-file FILE",
    "Read the text from a file and leave it as it is, with its end.",
    type=FILE,
)
n_chunks = option(
    "n_chunks",
    "--chunks N",
    "Most chunks of the text to run; -1: all.",
    default=-1,
    type=Whole(1, unlimited=-1),
)
escape = flag(
    "escape",
    "-e --escape/--no-escape",
    r"Read \n, \r, \t, \', \", \\ and \xHH in the text as the characters that they stand for.",
    default=None,
    show_default="in -p, not in what comes from a file or a pipe",
)
as_json = flag("as_json", "--json", "Write JSON, one object per line.")
kv_unified = flag(
    "kv_unified",
    "-kvu/-no-kvu --kv-unified/--no-kv-unified",
    "One cache that all sequences share, instead of an equal part for each.",
    show_default=False,
    section=MODEL,
)
kv_layout = option(
    "kv_layout",
    "-kvl --kv-layout LAYOUT",
    "split, an equal part of the cache for each sequence; unified, one that all share, as -kvu;"
    " paged, one that they share in pages.",
    type=click.Choice(["split", "unified", "paged"]),
    show_default="split",
    section=MODEL,
)
n_threads = option("n_threads", *_N_THREADS, section=MODEL, **_ONE_PER_CORE)
type_k = option("type_k", *_TYPE_K, default="f16", section=MODEL)
type_v = option("type_v", *_TYPE_V, default="f16", section=MODEL)
kv_rotation = option("kv_rotation", *_KV_ROTATION, default="auto", section=MODEL, **_SWITCH)
flash_attn = option("flash_attn", *_FLASH_ATTN, default="auto", section=MODEL, **_SWITCH)


def model_file(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: -m, and the options that name a model on a hub; the command gets `model`."""
    return _model_option(or_from_hub("model")(command))


def as_rotation(switch: str) -> bool | None:
    """Whether -kvr asks for a rotation; None where the model decides."""
    return {"on": True, "off": False, "auto": None}[switch]


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """The backend, and the placement of layers and tensors."""

    backend: str = setting(
        "auto",
        "--backend NAME",
        "The backend: cpu, cuda (a GPU; cuda:1 is the second one), reference (slow, for"
        " comparison), or an installed one; auto is cpu. Several, by commas, share the layers:"
        " cuda,cuda:1,cpu.",
    )
    n_gpu_layers: int = setting(
        -1,
        "-ngl --gpu-layers --n-gpu-layers N",
        "How many of the last layers, the output among them, lie on a backend with memory of its"
        " own; -1: all.",
        type=Layers(),
    )
    override_tensors: Mapping[str, str] | None = setting(
        None,
        "-ot --override-tensor PATTERN=BACKEND,…",
        "The backend of tensors whose names match a regular expression, regardless of -ngl.",
        type=Overrides(),
        show_default="none",
    )
    cpu_moe: bool = setting(
        False, "-cmoe --cpu-moe", "The experts of all layers lie on the host.", is_flag=True
    )
    n_cpu_moe: int = setting(
        0, "-ncmoe --n-cpu-moe N", "The experts of the first N layers lie on the host.",
        type=Whole(0),
    )  # fmt: skip
    n_cpu_ffn: int = setting(
        0,
        "-ncffn --n-cpu-ffn N",
        "The feed-forward weights of the first N layers, but not experts, lie on the host.",
        type=Whole(0),
    )

    @property
    def tensors(self) -> dict[str, str]:
        """Where tensors lie regardless of -ngl: patterns of their names, and what has them."""
        found = dict(self.override_tensors or {})
        if self.cpu_moe:
            found.setdefault(_EXPERTS, HOST)
        for n, weights in ((self.n_cpu_moe, _EXPERTS), (self.n_cpu_ffn, _FEED_FORWARD)):
            if n:
                found.setdefault(rf"^blk\.({_below(n)}){weights}", HOST)
        return found

    @property
    def backends(self) -> str | list[str]:
        """A name, or several that are separated by commas."""
        names = [name.strip() for name in self.backend.split(",")]
        return names if len(names) > 1 else self.backend


def _below(n: int) -> str:
    """A regular expression of the numbers below n, which is at least 1, as short for any n."""
    digits = str(n)
    parts = [rf"\d{{1,{len(digits) - 1}}}"] if len(digits) > 1 else []
    for i, digit in enumerate(digits):
        if digit != "0":
            parts.append(rf"{digits[:i]}[0-{int(digit) - 1}]\d{{{len(digits) - 1 - i}}}")
    return "|".join(parts)


@dataclass(frozen=True, slots=True)
class MachineOptions(PlacementOptions):
    """How a model runs, and on which backends."""

    n_ubatch: int = setting(
        512, "-ub --ubatch-size N", "Tokens that are processed at a time.", type=Whole(1)
    )
    type_k: str = setting("f16", *_TYPE_K)
    type_v: str = setting("f16", *_TYPE_V)
    kv_rotation: str = setting("auto", *_KV_ROTATION, **_SWITCH)
    flash_attn: str = setting("auto", *_FLASH_ATTN, **_SWITCH)

    @property
    def fused_attention(self) -> bool:
        return self.flash_attn != "off"

    @property
    def rotates(self) -> bool | None:
        """Whether K and V are rotated; None where the model decides."""
        return as_rotation(self.kv_rotation)


@dataclass(frozen=True, slots=True)
class ModelOptions(MachineOptions):
    """How a model is opened to generate text."""

    n_ctx: int = setting(
        0,
        "-c --ctx-size N",
        "Tokens that fit in the context; 0: as many as the model was trained with.",
        type=Whole(0),
    )
    n_batch: int | None = setting(
        None,
        "-b --batch-size N",
        "Tokens of a batch: an upper limit of -ub.",
        type=Whole(1),
        show_default="no limit",
    )
    n_threads: int | None = setting(None, *_N_THREADS, **_ONE_PER_CORE)
    fit: bool = setting(
        False,
        "-fit --fit on|off",
        "Choose -ngl, and -c where it is not given, by the free memory of devices: all layers with"
        " a shorter context, else fewer layers.",
        type=OnOff(),
        is_flag=False,
        flag_value="on",
        show_default="off",
    )
    override_kv: tuple[str, ...] = setting(
        (),
        "--override-kv KEY=TYPE:VALUE,…",
        "A value in place of the file's metadata, such as llama.context_length=int:4096; several"
        " with commas, or in several options.",
        multiple=True,
        section=METADATA,
        show_default=False,
    )
    rope_scaling: str | None = setting(
        None,
        "--rope-scaling TYPE",
        "Scaling of rotary embeddings: none, linear, yarn or longrope.",
        **_AS_IN_FILE,
    )
    rope_scale: float | None = setting(
        None,
        "--rope-scale FACTOR",
        "How many times the training context is extended; 1 / --rope-freq-scale.",
        type=Real(),
        **_AS_IN_FILE,
    )
    rope_freq_base: float | None = setting(
        None, "--rope-freq-base N", "Base of the frequencies.", type=Real(), **_AS_IN_FILE
    )
    rope_freq_scale: float | None = setting(
        None, "--rope-freq-scale N", "What positions are multiplied by.", type=Real(), **_AS_IN_FILE
    )
    yarn_ext_factor: float | None = setting(
        None,
        "--yarn-ext-factor N",
        "YaRN: how much extrapolation is mixed in; 0: none, -1: by the scaling.",
        type=Real(),
        **_AS_IN_FILE,
    )
    yarn_beta_fast: float | None = setting(
        None,
        "--yarn-beta-fast N",
        "YaRN: rotations above which nothing is scaled.",
        type=Real(),
        **_AS_IN_FILE,
    )
    yarn_beta_slow: float | None = setting(
        None,
        "--yarn-beta-slow N",
        "YaRN: rotations below which all is scaled.",
        type=Real(),
        **_AS_IN_FILE,
    )
    yarn_orig_ctx: int | None = setting(
        None,
        "--yarn-orig-ctx N",
        "YaRN: the context that the model was trained with.",
        type=Whole(1),
        **_AS_IN_FILE,
    )

    @property
    def kv_overrides(self) -> dict[str, Scalar]:
        """Values in place of the file's metadata. Raises ArgumentError."""
        from ggmlpy.gguf.overrides import parse_overrides

        return parse_overrides(self.override_kv)

    @property
    def rope(self) -> RopeOverrides:
        """What takes the place of the file's rotary embeddings. Raises ArgumentError."""
        from ggmlpy.models.rope_overrides import RopeOverrides, scale_of

        return RopeOverrides(
            scaling=self.rope_scaling,
            freq_base=self.rope_freq_base,
            freq_scale=scale_of(self.rope_freq_scale, self.rope_scale),
            ext_factor=self.yarn_ext_factor,
            beta_fast=self.yarn_beta_fast,
            beta_slow=self.yarn_beta_slow,
            n_ctx_orig=self.yarn_orig_ctx,
        )


@dataclass(frozen=True, slots=True)
class ChunkOptions(ModelOptions):
    """How a model is opened to run chunks of a text."""

    n_ctx: int = setting(
        512,
        "-c --ctx-size N",
        "Tokens of a chunk of the text; of tasks, the most of an answer.",
        type=Whole(4),
    )


@dataclass(frozen=True, slots=True)
class BenchOptions(MachineOptions):
    """How a model is opened to measure it, except for the threads."""

    n_batch: int = setting(
        2048, "-b --batch-size N", "Tokens of a batch, which is cut into ubatches.", type=Whole(1)
    )

    def setup(self, n_threads: int | None) -> Setup:
        from ggmlpy.bench.bench import Setup

        return Setup(
            n_batch=self.n_batch,
            n_ubatch=self.n_ubatch,
            n_threads=n_threads,
            backend=self.backends,
            type_k=self.type_k,
            type_v=self.type_v,
            kv_rotation=self.rotates,
            flash_attn=self.fused_attention,
            n_gpu_layers=self.n_gpu_layers,
            override_tensors=self.tensors,
        )


placement_options = group(PlacementOptions, "where", "Placement")
chunk_options = group(ChunkOptions, "setup", MODEL)
model_options = group(ModelOptions, "setup", MODEL)
_VARIED = ("n_gpu_layers", "n_ubatch", "type_k", "type_v", "flash_attn", "n_batch")
bench_grid = grid(BenchOptions, "machines", MODEL, _VARIED)
bench_options = group(BenchOptions, "machine", MODEL)
placement = flag(
    "placement",
    "--placement",
    "Show the backend of each node and the memory of each tensor; implied by the options of"
    " placement.",
)
sampling_options = group(SamplingOptions, "sampling", SAMPLING)

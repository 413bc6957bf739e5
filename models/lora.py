"""LoRA adapters in GGUF files: changes of low rank to some weights of a model.

    y = W x + scale * alpha / r * B (A x)        A [n_in, r], B [r, n_out]; alpha 0: scale alone

`general.type` is "adapter" and `adapter.type` "lora"; the tensors are called after the weight,
`NAME.lora_a` and `NAME.lora_b`. Those of token embeddings are the other way round, for A is looked
up: A [r, n_vocab], B [r, n_embd]. Those of experts have one A and one B each: [n_in, r, X] and
[r, n_out, X]. Source: Hu et al., 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from ggmlpy.common.callers import warn_caller
from ggmlpy.common.quoting import quoted, quoted_list
from ggmlpy.errors import Unsupported, WeightError
from ggmlpy.gguf import GGUFFile, TensorInfo
from ggmlpy.gguf.weights_digest import digest_of
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.other_files import kind_of_file
from ggmlpy.models.weights import Weights, WeightWarning

_SUFFIXES = (".lora_a", ".lora_b")
_LOOKED_UP = "token_embd.weight"


@dataclass(frozen=True, slots=True, eq=False)
class LoraWeight:
    """What an adapter adds to one weight of the model: factor * B A, times the scale in use."""

    name: str  # of the model's tensor, by which A and B are placed
    a: Tensor
    b: Tensor
    factor: float  # alpha / r, or 1


class LoraAdapter:
    """A LoRA adapter that fits a model: what `Llama.load_lora` returns.

    path    of its file
    name    of its file, for messages
    alpha   by which its changes are scaled, divided by their rank; 0: they are not
    digest  equal for adapters that change a model equally, whatever their files are called
    scale   the default of requests; 0: those that name the adapter have it
    """

    def __init__(
        self,
        file: GGUFFile,
        alpha: float,
        digest: str,
        weights: dict[Tensor, LoraWeight],
        scale: float,
    ) -> None:
        """Use `open_lora`."""
        self.path: Path = file.path
        self.name: str = file.name
        self.alpha = alpha
        self.digest = digest
        self.scale = scale
        self.weights = weights  # by the leaf of the model's weight
        self._file = file

    def __str__(self) -> str:
        size = f"{self._counted}, {self.n_bytes / 1e6:.1f} MB"
        return f"{self.name}: {size}, scale {self.scale:g} unless a request says otherwise"

    def __repr__(self) -> str:
        if not self.weights:
            return f"LoraAdapter({self.name!r}, unloaded)"
        ranks = sorted({w.b.ne[0] for w in self.weights.values()})
        return (
            f"LoraAdapter({self.name!r}, {self._counted}, rank {', '.join(map(str, ranks))},"
            f" alpha={self.alpha:g}, scale={self.scale:g})"
        )

    @property
    def _counted(self) -> str:
        n = len(self.weights)
        return f"{n} weight{'s' * (n != 1)}"

    @property
    def leaves(self) -> list[tuple[str, Tensor, str]]:
        """All A and B: the name of the model's tensor, the leaf, the op that reads it."""
        found = []
        for weight in self.weights.values():
            product = "mul_mat" if weight.a.ne[2] == 1 else "mul_mat_id"
            looked_up = weight.name == _LOOKED_UP
            found.append((weight.name, weight.a, "get_rows" if looked_up else product))
            found.append((weight.name, weight.b, product))
        return found

    @property
    def n_bytes(self) -> int:
        """Bytes of all A and B in the file."""
        return sum(leaf.spec.n_bytes for _, leaf, _ in self.leaves)

    def close(self) -> None:
        """Let go of the weights, which no graph reads any more, and close the file."""
        self.weights.clear()
        self._file.close()


def open_lora(
    path: str | bytes | PathLike[str], weights: Weights, architecture: str, scale: float = 1.0
) -> LoraAdapter:
    """The adapter in a file, checked against the weights of a model.

    Raises FileError for a file that cannot be read, WeightError for one that is no adapter or that
    does not fit the model, Unsupported for another kind of adapter. A WeightWarning names tensors
    that have no effect.
    """
    file = GGUFFile.open(path)
    try:
        alpha = _alpha(file, architecture)
        changes = _changes(file, weights)
        digest = f"{digest_of(file.tensors.values())}:{alpha!r}"
        of_file = Weights(file)
        by_leaf = {}
        for name, pair in changes.items():
            leaf_a, leaf_b = (of_file.take(x.name, *x.ne[: x.n_dims]) for x in pair)
            for leaf in (leaf_a, leaf_b):  # two adapters change the same tensors
                leaf.name = f"{leaf.name}.{digest[:6]}"
            factor = alpha / leaf_b.ne[0] if alpha else 1.0
            by_leaf[weights.leaves[name]] = LoraWeight(name, leaf_a, leaf_b, factor)
        _warn_of_unused(file, of_file)
        return LoraAdapter(file, alpha, digest, by_leaf, scale)
    except BaseException:
        file.close()
        raise


def _alpha(file: GGUFFile, architecture: str) -> float:
    """Checks the metadata, and returns alpha."""
    metadata = file.metadata
    kind = kind_of_file(file)
    if kind is None or metadata.str("general.type", "") != "adapter":
        raise WeightError(
            f"{file.name}: this is {kind or 'a model'}: it must be a LoRA adapter, whose"
            ' "general.type" is "adapter"'
        )
    adapter_type = metadata.str("adapter.type")
    if adapter_type != "lora":
        raise Unsupported(
            f'{file.name}: key "adapter.type" is {quoted(adapter_type)}: of adapters "lora" is'
            " supported"
        )
    found = metadata.str("general.architecture")
    if found != architecture:
        raise WeightError(
            f"{file.name}: the adapter is for architecture {quoted(found)}, the model is of"
            f" {quoted(architecture)}"
        )
    if "adapter.alora.invocation_tokens" in metadata:
        raise Unsupported(
            f"{file.name}: this is an activated LoRA (aLoRA), which changes only the tokens behind"
            " its invocation tokens: that is not supported"
        )
    alpha = metadata.float("adapter.lora.alpha", 0.0)
    if not math.isfinite(alpha):
        raise WeightError(f'{file.name}: key "adapter.lora.alpha" is {alpha}, must be finite')
    return alpha


def _changes(file: GGUFFile, weights: Weights) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    """A and B by the names of the model's weights, their shapes checked."""
    names: dict[str, None] = {}
    for name in file.tensors:
        stem, suffix = name[:-7], name[-7:]
        if suffix in _SUFFIXES:
            names[stem] = None
        elif not name.endswith("_norm.weight"):
            raise WeightError(
                f"{file.name}: tensor {quoted(name)}: the names of an adapter's tensors end in"
                " .lora_a or .lora_b"
            )
    if not names:
        raise WeightError(f"{file.name}: the adapter has no tensors")
    pairs = {}
    for name in names:
        a, b = (file.tensors.get(f"{name}{suffix}") for suffix in _SUFFIXES)
        if a is None or b is None:
            missing = _SUFFIXES[a is not None]
            raise WeightError(f"{file.name}: tensor {quoted(name + missing)} is missing")
        base = weights.leaves.get(name)
        if base is not None:
            _check_pair(file, a, b, name, base.ne)
            pairs[name] = a, b
        elif not weights.has(name):
            raise WeightError(
                f"{file.name}: the adapter changes {quoted(name)}, which is not in the model: it"
                " may be for another model"
            )
    if not pairs:
        raise WeightError(f"{file.name}: the model uses none of the tensors that it changes")
    return pairs


def _check_pair(
    file: GGUFFile, a: TensorInfo, b: TensorInfo, name: str, ne: tuple[int, ...]
) -> None:
    """Raise WeightError unless B A has the shape `ne` of the model's weight `name`."""
    n_in, n_out, n_experts, n_more = ne
    r = b.ne[0]
    if name == _LOOKED_UP:
        wanted = (r, n_out, 1, 1), (r, n_in, 1, 1)
    else:
        wanted = (n_in, r, n_experts, n_more), (r, n_out, n_experts, n_more)
    n_dims = 2 if n_experts == n_more == 1 else 3
    for x, must_be in zip((a, b), wanted, strict=True):
        if not (x.type.is_float or x.type.is_quantized):
            raise WeightError(f"{file.name}: tensor {quoted(x.name)} is of type {x.type.name}")
        if x.ne != must_be:
            raise WeightError(
                f"{file.name}: {quoted(x.name)} is {list(x.ne[: x.n_dims])}, it must be"
                f" {list(must_be[:n_dims])}: the model's {quoted(name)} is {list(ne[:n_dims])}, and"
                f" {quoted(b.name)} has rank {r}"
            )


def _warn_of_unused(file: GGUFFile, taken: Weights) -> None:
    names = taken.unused()
    if names:
        warn_caller(
            f"{file.name}: {quoted_list(names)} have no effect: norms of an adapter are not"
            " used, as in llama.cpp, nor what changes unused tensors of the model",
            WeightWarning,
        )


@dataclass(frozen=True, slots=True, eq=False)
class LoraRows:
    """The inputs of one adapter for tokens, or for those that are output: M of them have it.

    Without `ids` they are all."""

    scales: Tensor  # [1, M] f32
    ids: Tensor | None  # [M] i32: which they are


@dataclass(frozen=True, slots=True, eq=False)
class LoraInputs:
    """One adapter in the graph of a ubatch of T tokens, O of which are output."""

    adapter: LoraAdapter
    tokens: LoraRows  # of T
    outputs: LoraRows | None  # of O; None: no such token has the adapter

"""What an architecture makes of a file: `ggmlpy inspect --plan`."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ggmlpy.common.quoting import printable
from ggmlpy.gguf import GGUFFile
from ggmlpy.models.memory import AttentionLayers, KVSizes, Memory, Window

if TYPE_CHECKING:
    from ggmlpy.models import Model


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The architecture, what its layers keep of past tokens, and what of the file has no use."""

    architecture: str
    about: str  # the first paragraph of the architecture's page
    n_layer: int
    n_layer_encoder: int  # of an encoder-decoder model, else 0
    memory: list[str]
    unused_tensors: list[str]
    unread_keys: list[str]
    ignored_keys: list[str]  # those of unread_keys that change what a model computes

    @classmethod
    def of(cls, file: GGUFFile) -> ModelPlan:
        """Raises Unsupported for an unknown architecture, WeightError for a damaged file."""
        from ggmlpy.models import load_model

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are told here
            model = load_model(file)
        page = inspect.getdoc(sys.modules[type(model).__module__]) or ""
        keys = model.hparams.keys
        return cls(
            architecture=model.hparams.architecture,
            about=" ".join(page.split("\n\n")[0].split()),
            n_layer=model.hparams.n_layer,
            n_layer_encoder=0 if model.encoder is None else model.encoder.hparams.n_layer,
            memory=[*described(model.memory), *_described_sources(model.encoder)],
            unused_tensors=model.weights.unused(),
            unread_keys=keys.unread(),
            ignored_keys=keys.ignored(),
        )

    def as_dict(self) -> dict[str, Any]:
        """The object that `--json` writes."""
        return {name: getattr(self, name) for name in self.__slots__}

    def lines(self) -> Iterable[str]:
        """The text that is shown."""
        layers = f"{self.n_layer} layers"
        if self.n_layer_encoder:
            layers += f" behind an encoder of {self.n_layer_encoder}"
        yield f"architecture: {self.architecture}, {layers}. {self.about}"
        for line in self.memory:
            yield f"memory: {line}"
        yield f"tensors without use: {_listed(self.unused_tensors)}"
        yield f"keys without use: {_listed(self.unread_keys)}"
        if self.ignored_keys:
            yield f"of these change what a model computes: {_listed(self.ignored_keys)}"


def described(memory: Memory) -> list[str]:
    """A line for each kind of layer: "layers 0 to 3, 5: K and V (2 heads of 16) of all tokens"."""
    found = []
    for part in memory:
        if isinstance(part, AttentionLayers):
            for sizes, layers in _alike(part.layers).items():
                found.append(f"{spans(layers)}: {_kv(sizes)} of {_seen(part)}")
        else:
            for states, layers in _alike(part.states).items():
                found.append(f"{spans(layers)}: {_states(states)}")
    return found


def _described_sources(encoder: Model | None) -> list[str]:
    """What is kept of the sources that an encoder has encoded: for its own layers, whose tokens all
    see each other, and for those of the decoder."""
    found = []
    for part in () if encoder is None else encoder.memory:
        assert encoder is not None and isinstance(part, AttentionLayers)
        own = {slot: size for slot, size in part.layers.items() if slot < encoder.n_block}
        others = {slot - encoder.n_block: s for slot, s in part.layers.items() if slot not in own}
        for layers, of in ((own, "of the encoder"), (others, "of the decoder")):
            for sizes, numbers in _alike(layers).items():
                found.append(f"{spans(numbers)} {of}: {_kv(sizes)} of the source")
    return found


def _alike(layers: Mapping[int, Any]) -> dict[Any, list[int]]:
    by_sizes: dict[Any, list[int]] = {}
    for layer, sizes in layers.items():
        by_sizes.setdefault(sizes, []).append(layer)
    return by_sizes


def _kv(sizes: KVSizes) -> str:
    k, v = sizes.n_embd_head_k, sizes.n_embd_head_v
    heads = f"{sizes.n_head_kv} head{'s' if sizes.n_head_kv > 1 else ''}"
    if not v:
        return f"K ({heads} of {k}), of which V is a part,"
    return f"K and V ({heads} of {k})" if k == v else f"K and V ({heads} of {k} and {v})"


def _states(sizes: Sequence[int]) -> str:
    """`a state of 128 numbers`, or `3 states, of 128, 64 and 8 numbers`"""
    if len(sizes) == 1:
        return f"a state of {sizes[0]} numbers"
    first = ", ".join(map(str, sizes[:-1]))
    return f"{len(sizes)} states, of {first} and {sizes[-1]} numbers"


def _seen(part: AttentionLayers) -> str:
    window: Window | None = part.window
    if window is None:
        return "all tokens" if part.is_causal else "all tokens, also those behind"
    kinds = {
        "standard": f"a window of {window.size} tokens",
        "chunked": f"chunks of {window.size} tokens",
        "symmetric": f"a window of {window.size} tokens to both sides",
    }
    return kinds[window.kind]


def spans(layers: Iterable[int]) -> str:
    """`layers 0 to 3, 5`, or `layer 5`"""
    ordered = sorted(layers)
    starts = [ordered[0], *(b for a, b in pairwise(ordered) if b != a + 1)]
    ends = [*(a for a, b in pairwise(ordered) if b != a + 1), ordered[-1]]
    runs = zip(starts, ends, strict=True)
    numbers = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in runs)
    return f"layer{'s' if len(ordered) > 1 else ''} {numbers}"


def _listed(names: list[str]) -> str:
    return ", ".join(map(printable, names)) if names else "none"

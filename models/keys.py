"""The metadata of one architecture: typed reads whose errors name the file and the key."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import WeightError
from ggmlpy.gguf import GGUFFile, LazyArray

MAX_COUNT = 2**31 - 1  # positions, tokens and indices of a graph are i32
# Parameters of nodes are f32, and some are the reciprocal of the file's value.
MIN_REAL, MAX_REAL = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
# Keys that say what other keys or tensors say too, or nothing about the computation.
_NO_MEANING = {"vocab_size", "tensor_data_layout", "pooling_type"}
# Keys that change what a model computes, unless they have one of the values after them, 0 or "":
# those that mean nothing, and those that llama.cpp writes into every file that it saves. Left out
# are sizes of tensors, whose shapes are checked, and what is only of images.
_MEANING: dict[str, tuple[object, ...]] = {
    r"(embedding|residual|logit)_scale": (1.0,),
    r"attention\.(scale|output_scale|value_scale)": (1.0,),
    r"attention\.(clamp_kqv|max_alibi_bias|relative_buckets_count)": (),
    r"attention\.(sliding_window|chunk_size|compress_ratios|indexer\.top_k|output_group_count)": (),
    r"attention\.(recurrent_layers|shared_kv_layers)": (),
    r"attention\.rope_pattern": (1,),
    r"attention\.temperature_(scale|length)": (),
    r"attn_logit_softcapping": (50.0,),
    r"(router_logit|final_logit)_softcapping": (30.0,),
    r"activation\.situ_(beta|linear_beta)": (1.0,),
    r"hidden_activation": (),
    r"swiglu_clamp_(exp|shexp)": (),
    r"rope\.dimension_sections": (),
    r"rope\.scaling\.(factor|attn_factor|yarn_attn_factor|yarn_log_multiplier|alpha)": (1.0,),
    r"rope\.scaling\.yarn_ext_factor": (-1.0, 1.0),  # below 0: by the type; 1: what YaRN has
    r"rope\.scaling\.type": ("none", "linear"),
    r"expert_(weights_scale|gating_func|group_count)": (1, 1.0),  # the norm: see take_router
    r"expert_group_scale": (float(np.float32(0.05)),),
    r"(leading_dense_block_count|moe_every_n_layers|experts_per_group)": (),
    r"(interleave_moe_layer_step|num_loops)": (1,),
    r"(full_attention_interval|hash_layer_count|rescale_every_n_layers)": (),
    r"(attn_res\.block_size|hyper_connection\.count|adapters\.count)": (),
    r"token_shift_count": (2,),
    r"kda\.(safe_gate|gate_lower_bound)": (-math.inf,),
    r"(use_parallel_residual|swin_norm|ssm\.dt_b_c_rms|hrm\.prefix_lm)": (),
    r"nextn_predict_layers": (),
}
# Keys of layers with a window, which mean nothing where they are as those of the others, or the
# default.
_OF_WINDOWS: dict[str, tuple[str, tuple[object, ...]]] = {
    "rope.freq_base_swa": ("rope.freq_base", (10_000.0,)),
    "rope.dimension_count_swa": ("rope.dimension_count", ()),
    "attention.key_length_swa": ("attention.key_length", ()),
    "attention.value_length_swa": ("attention.value_length", ()),
}
_LAYER = re.compile(r"(?:(?:enc|dec)\.)?blk\.(\d{1,9})\.")
_MAX_EMPTY = 512  # layers that a file can have without tensors of them, as in llama.cpp


def _alike(own: float, found: object) -> bool:
    """Whether a number of a file is one of an architecture, which may have more digits than f32."""
    if not isinstance(found, (int, float)):
        return False
    with np.errstate(over="ignore"):  # of f64
        return bool(np.float32(found) == np.float32(own))


class Keys:
    """A file's `<architecture>.…` keys.

    `n_layer` are the layers that plain decoding runs: `block_count` less `nextn_predict_layers`,
    which lie behind them. Where a file has `n_of` stacks of layers and `block_count` is something
    else, it is the key with the size of one. Raises WeightError where that is more than the layers
    whose tensors the file holds.
    """

    def __init__(self, file: GGUFFile, *, size: str = "block_count", n_of: int = 1) -> None:
        self.file = file.name
        self._metadata = file.metadata
        self._read: set[str] = set()
        self._contradicted: set[str] = set()
        self.architecture = file.metadata.str("general.architecture")
        n = self._within(size, file.metadata.int(self._name(size)), 1)
        numbers = {int(found[1]) for name in file.tensors if (found := _LAYER.match(name))}
        # A layer may have no tensors: those of Deci that its search has emptied.
        self._n_held = max(len(numbers), min(1 + max(numbers, default=-1), _MAX_EMPTY))
        if n * n_of > self._n_held:
            must_be = f"at most {self._n_held // n_of}, the layers with tensors blk.*"
            raise self.error(size, n, must_be)
        self.n_layer_all = n * n_of
        n_nextn = self.whole("nextn_predict_layers", 0)
        if n_nextn >= self.n_layer_all:
            must_be = f"below {self.n_layer_all}, the block_count"
            raise self.error("nextn_predict_layers", n_nextn, must_be)
        self.n_layer = self.n_layer_all - n_nextn

    def _name(self, key: str) -> str:
        """The key in the file, which counts as read from now on."""
        name = f"{self.architecture}.{key}"
        self._read.add(name)
        return name

    def without_effect(self, key: str) -> None:
        """Declare that a key has no effect in this architecture: it causes no warning."""
        self._read.add(f"{self.architecture}.{key}")

    def fixed(self, key: str, value: float | Sequence[float]) -> None:
        """Declare that this architecture computes with a value of its own: the key causes no
        warning where it says the same."""
        found = self._metadata.get(f"{self.architecture}.{key}")
        if found is None:
            return
        listed = list(found) if isinstance(found, LazyArray) else [found]
        own = list(value) if isinstance(value, Sequence) else [value]
        if len(own) == len(listed) and all(map(_alike, own, listed)):
            self.without_effect(key)
        else:
            self._contradicted.add(f"{self.architecture}.{key}")

    def unread(self) -> list[str]:
        """The architecture's keys in the file that were not read and may mean something."""
        prefix = f"{self.architecture}."
        return [
            name
            for name in self._metadata
            if name.startswith(prefix)
            and name not in self._read
            and name.removeprefix(prefix) not in _NO_MEANING
        ]

    def ignored(self) -> list[str]:
        """Those of `unread` that change what a model computes, as they are."""
        return [name for name in self.unread() if self._has_meaning(name)]

    def _has_meaning(self, name: str) -> bool:
        if name in self._contradicted:
            return True
        key, value = name.removeprefix(f"{self.architecture}."), self._metadata[name]
        values = set(value) if isinstance(value, LazyArray) else {value}
        if key in _OF_WINDOWS:
            other, neutral = _OF_WINDOWS[key]
            same = self._metadata.get(f"{self.architecture}.{other}")
            return value != same and not values <= {0, *neutral}
        for pattern, neutral in _MEANING.items():
            if re.fullmatch(pattern, key):
                return not values <= {0, "", *neutral}
        return False

    # --- integers ---

    def count(self, key: str, default: int | None = None) -> int:
        """An integer of at least 1. A list of it per layer must hold the same number throughout."""
        name = self._name(key)
        if isinstance(self._metadata.get(name), LazyArray):
            numbers = set(self.per_layer(key, 0))
            if len(numbers) != 1:
                listed = ", ".join(map(str, sorted(numbers)[:8]))
                raise self.error(key, f"a list of {listed}", "the same number for every layer")
            found = numbers.pop()
        elif default is None:
            found = self._metadata.int(name)
        else:
            found = self._metadata.int(name, default)
        return self._within(key, found, 1)

    def layers(self, key: str, default: int) -> int:
        """The number of layers of a further stack. Raises WeightError for more than there are."""
        n = self.count(key, default)
        if n > self._n_held:
            raise self.error(key, n, f"at most {self._n_held}, the layers with tensors blk.*")
        return n

    def whole(self, key: str, default: int) -> int:
        """An integer of at least 0."""
        return self._within(key, self._metadata.int(self._name(key), default), 0)

    def per_layer(self, key: str, default: int | Sequence[int]) -> list[int]:
        """An integer of at least 0 for each layer: of a list, or one number for all."""
        name = self._name(key)
        value = self._metadata.get(name)
        if value is None and not isinstance(default, int):
            return list(default)
        if not isinstance(value, LazyArray):
            assert isinstance(default, int) or value is not None
            number = self._metadata.int(name, default if isinstance(default, int) else 0)
            return [self._within(key, number, 0)] * self.n_layer
        listed = self._metadata.array(name, of="bool" if value.type == "bool" else "int")
        return [self._within(key, int(n), 0) for n in self._of_layers(key, listed)]

    def integers(self, key: str) -> list[int]:
        """A list of integers of at least 0; empty if the key is missing."""
        name = self._name(key)
        if self._metadata.get(name) is None:
            return []
        return [self._within(key, int(n), 0) for n in self._metadata.array(name, of="int")]

    def length(self, key: str, default: int) -> int:
        """How many elements a list has; `default` if the key is missing or the list empty."""
        value = self._metadata.get(self._name(key))
        return len(value) or default if isinstance(value, LazyArray) else default

    def unsigned(self, key: str) -> list[int]:
        """A list of integers of at least 0, of up to 64 bits; empty if the key is missing."""
        name = self._name(key)
        if self._metadata.get(name) is None:
            return []
        listed = [int(n) for n in self._metadata.array(name, of="int")]
        if any(n < 0 for n in listed):
            raise self.error(key, min(listed), "at least 0")
        return listed

    def windowed(self, period: int, *, full_first: bool = False) -> list[bool]:
        """For each layer whether it has a sliding window: `attention.sliding_window_pattern`.

        The key is a list of flags, or the period, which is `period` if it is missing: the last
        layer of each period has full attention, or with `full_first` the first. A period of 0
        means that all layers have a window.
        """
        key = "attention.sliding_window_pattern"
        if isinstance(self._metadata.get(self._name(key)), LazyArray):
            return [bool(n) for n in self.per_layer(key, 0)]
        n = self.whole(key, period)
        full = 0 if full_first else n - 1
        return [n == 0 or i % n != full for i in range(self.n_layer)]

    def _within(self, key: str, found: int, least: int) -> int:
        if not least <= found <= MAX_COUNT:
            raise self.error(key, found, f"at least {least} and below 2^31")
        return found

    def _of_layers(self, key: str, listed: LazyArray) -> list[Any]:
        if len(listed) not in (self.n_layer, self.n_layer_all):
            must_be = f"one of {self.n_layer_all}, the block_count"
            raise self.error(key, f"a list of {len(listed)}", must_be)
        return list(listed)[: self.n_layer]

    # --- other types ---

    def real(self, key: str, default: float | None = None) -> float:
        """A float that is 0, or positive and a normal f32."""
        name, read = self._name(key), self._metadata.float
        return self._real(key, read(name) if default is None else read(name, default))

    def reals(self, key: str, default: float) -> list[float]:
        """A float as of `real` for each layer: of a list, or one number for all."""
        name = self._name(key)
        if not isinstance(self._metadata.get(name), LazyArray):
            return [self.real(key, default)] * self.n_layer
        listed = self._metadata.array(name, of="float")
        return [self._real(key, float(x)) for x in self._of_layers(key, listed)]

    def _real(self, key: str, found: float) -> float:
        if found != 0 and not MIN_REAL <= found <= MAX_REAL:
            raise self.error(key, found, "0, or a finite number above 0 that is normal in f32")
        return found

    def positive(self, key: str, default: float | None = None) -> float:
        """A float that is positive and a normal f32."""
        name = self._name(key)
        read = self._metadata.float
        found = read(name) if default is None else read(name, default)
        if not MIN_REAL <= found <= MAX_REAL:
            raise self.error(key, found, "a finite number above 0 that is normal in f32")
        return found

    def signed(self, key: str, default: float | None = None) -> float:
        """A finite float that may be negative."""
        name, read = self._name(key), self._metadata.float
        found = read(name) if default is None else read(name, default)
        if not -MAX_REAL <= found <= MAX_REAL:
            raise self.error(key, found, "a finite number")
        return found

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        return self._metadata.bool(self._name(key), default)

    def text(self, key: str, default: str) -> str:
        """A string."""
        return self._metadata.str(self._name(key), default)

    def has(self, key: str) -> bool:
        """Whether the file has the key."""
        return self._metadata.get(self._name(key)) is not None

    def error(self, key: str, found: object, must_be: str) -> WeightError:
        """The error that a key has a value which it must not have."""
        name = quoted(f"{self.architecture}.{key}")
        return WeightError(f"{self.file}: key {name} is {found}, must be {must_be}")

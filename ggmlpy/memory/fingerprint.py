"""Identifies a model by everything that its K and V depend on.

K and V depend on token ids, the architecture's keys and the weights. The tokenizer, names and chat
templates are left out: files that differ only in these give the same K and V for the same ids.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from ggmlpy.common.quoting import quoted
from ggmlpy.gguf import GGUFFile, LazyArray, Value
from ggmlpy.gguf.kept_digests import KeptDigests
from ggmlpy.gguf.weights_digest import digest_of

WORTH_KEEPING = 16 << 20  # bytes of weights; fewer are hashed in 20 ms, so the digest is not stored
_LONGEST = 200  # characters of a value; a longer one is replaced by its digest


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A model's architecture keys and the digest of its weights."""

    keys: dict[str, str]  # values as text, long ones as a digest
    weights: str

    @classmethod
    def of(cls, file: GGUFFile, kept: KeptDigests) -> Fingerprint:
        """The fingerprint of an open file. Reads all weights unless `kept` has their digest.

        Raises FileError if they cannot be read, or were written to since the file was opened.
        """
        architecture = file.metadata.str("general.architecture")
        counted = (key for key in file.metadata if key.startswith(f"{architecture}."))
        keys = {key: _as_text(file.metadata[key]) for key in counted}
        return cls({"general.architecture": repr(architecture)} | keys, _weights(file, kept))

    @classmethod
    def parse(cls, described: object) -> Fingerprint | None:
        """The fingerprint that `describe` returned; None for any other object."""
        match described:
            case {"keys": dict(keys), "weights": str(weights)} if all(map(_is_text, keys.values())):
                return cls(keys, weights)
        return None

    def describe(self) -> dict[str, Any]:
        """The fingerprint as an object that JSON can hold."""
        return {"keys": self.keys, "weights": self.weights}

    def difference(self, here: Fingerprint) -> str | None:
        """The first difference to the model `here`, a key or the weights; None if there is none."""
        for key in dict.fromkeys((*self.keys, *here.keys)):
            saved, own = (keys.get(key, "missing") for keys in (self.keys, here.keys))
            if saved != own:
                return f"key {quoted(key)} is {saved} in the state's model, {own} here"
        return None if self.weights == here.weights else "weights differ"


def _weights(file: GGUFFile, kept: KeptDigests) -> str:
    tensors = file.tensors.values()
    stamps = file.stamps()
    is_worth_it = sum(info.n_bytes for info in tensors) >= WORTH_KEEPING
    known = kept.get(stamps) if is_worth_it else None
    if known is not None:
        return known
    digest = digest_of(tensors)
    if file.stamps() == stamps and is_worth_it:
        kept.put(stamps, digest)
    return digest


def _as_text(value: Value) -> str:
    """A value on one line, or its digest if it is long."""
    plain = value.tolist() if isinstance(value, LazyArray) else value
    text = repr(plain)
    if len(text) <= _LONGEST:
        return text
    return f"of {len(text)} characters with SHA-256 {hashlib.sha256(text.encode()).hexdigest()}"


def _is_text(text: object) -> bool:
    """Whether this is valid as a value's text in a state file: messages show it."""
    return isinstance(text, str) and len(text) <= _LONGEST and text.isprintable()

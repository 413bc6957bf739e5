"""GGUF files that are no models, by what they say of themselves."""

from __future__ import annotations

from ggmlpy.errors import WeightError
from ggmlpy.gguf import GGUFFile

_BY_TYPE = {
    "adapter": "a LoRA adapter, which changes a model",
    "mmproj": "a projector (mmproj), which gives images or sound to a model",
    "imatrix": "an importance matrix, for quantizing a model",
    "control_vector": "a control vector, which steers a model",
}
_BY_ARCHITECTURE = {"clip": "mmproj", "controlvector": "control_vector", "imatrix": "imatrix"}


def kind_of_file(file: GGUFFile) -> str | None:
    """What a file is that is no model, by what it says of itself; None for others."""
    metadata = file.metadata
    kind = metadata.str("general.type", "")
    if any(key.startswith("adapter.") for key in metadata):
        kind = "adapter"
    kind = _BY_ARCHITECTURE.get(metadata.str("general.architecture", ""), kind)
    return _BY_TYPE.get(kind)


def refuse_other_files(file: GGUFFile) -> None:
    """Raise WeightError for a file that is no model, saying what it is."""
    kind = kind_of_file(file)
    if kind is not None:
        raise WeightError(f"{file.name}: this is {kind}: it must be the model's own file")
    if not file.tensors and any(key.startswith("tokenizer.") for key in file.metadata):
        raise WeightError(
            f"{file.name}: this file has a vocabulary and no weights: it must be a whole model"
            " (ggmlpy tokenize and Tokenizer.from_gguf take it as it is)"
        )

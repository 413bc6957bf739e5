"""Architectures, a page for each family: what its layers are made of, and how it differs.

In: a GGUF file. Out: a model. Modules are imported when a file needs them, see `REGISTRY`.
"""

from __future__ import annotations

# general.architecture: the module and the class
REGISTRY: dict[str, tuple[str, str]] = {
    "gemma3": ("gemma3", "Gemma3"),
    "lfm2": ("lfm2", "Lfm2"),
    "llama": ("llama", "Llama"),
    "qwen2": ("qwen2", "Qwen2"),
    "qwen3": ("qwen3", "Qwen3"),
}

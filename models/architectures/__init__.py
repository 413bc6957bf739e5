"""Architectures, a page for each family: what its layers are made of, and how it differs.

In: a GGUF file. Out: a model. Modules are imported when a file needs them, see `REGISTRY`.
"""

from __future__ import annotations

# general.architecture: the module and the class
REGISTRY: dict[str, tuple[str, str]] = {
    "arcee": ("arcee", "Arcee"),
    "deci": ("deci", "Deci"),
    "deepseek2": ("deepseek2", "DeepSeek2"),
    "deepseek2-ocr": ("deepseek2", "DeepSeek2Ocr"),
    "deepseek32": ("sparse_latent", "SparseLatent"),
    "dots3note": ("sparse_latent", "Dots3Note"),
    "dream": ("diffusion", "Dream"),
    "ernie4_5": ("ernie4_5", "Ernie45"),
    "exaone": ("exaone", "Exaone"),
    "exaone4": ("exaone", "Exaone4"),
    "falcon-h1": ("falcon_h1", "FalconH1"),
    "gemma3": ("gemma3", "Gemma3"),
    "gemma3n": ("gemma3n", "Gemma3n"),
    "gemma4": ("gemma4", "Gemma4"),
    "glm-dsa": ("sparse_latent", "GlmDsa"),
    "glm4": ("glm4", "Glm4"),
    "hunyuan-dense": ("hunyuan", "HunyuanDense"),
    "hunyuan_vl": ("hunyuan", "HunyuanDense"),
    "jamba": ("jamba", "Jamba"),
    "lfm2": ("lfm2", "Lfm2"),
    "llada": ("diffusion", "Llada"),
    "llama": ("llama", "Llama"),
    "llama-embed": ("llama", "LlamaEmbed"),
    "maincoder": ("maincoder", "Maincoder"),
    "mamba": ("mamba", "MambaModel"),
    "mamba2": ("mamba", "Mamba2Model"),
    "minicpm3": ("minicpm3", "MiniCPM3"),
    "mistral4": ("deepseek2", "DeepSeek2"),
    "nemotron_h": ("nemotron_h", "NemotronH"),
    "nemotron_h_moe": ("nemotron_h", "NemotronH"),
    "pangu-embedded": ("pangu_embedded", "PanguEmbedded"),
    "qwen2": ("qwen2", "Qwen2"),
    "qwen2vl": ("qwen_vl", "Qwen2VL"),
    "qwen3": ("qwen3", "Qwen3"),
    "qwen3vl": ("qwen_vl", "Qwen3VL"),
    "seed_oss": ("seed_oss", "SeedOss"),
    "smollm3": ("smollm3", "SmolLM3"),
}

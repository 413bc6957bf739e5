"""Write the trained model as a GGUF file: q8_0 matrices, f32 norms, tokenizer inside.

    python -m training.export --data build/stories --run build/run \
        --out ggmlpy/data/stories.gguf

Q and K need no permutation: the model was trained with llama.cpp's normal rotary mode, which
rotates the pairs (2i, 2i + 1). There is no output.weight: llama.cpp then uses token_embd.weight.
"""

import argparse
import json
from pathlib import Path

import gguf
import torch

from training.model import Llama, ModelConfig
from training.tokenizer import BOS_ID, EOS_ID

MAX_BYTES = 4_000_000
NAME = "ggmlpy stories"
DESCRIPTION = (
    "A small model that tells simple stories in English. Trained from scratch on stories that a "
    "seeded generator wrote."
)


def add_hyper_parameters(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    """The keys that llama.cpp's converter writes for the architecture "llama"."""
    writer.add_type("model")
    writer.add_name(NAME)
    writer.add_description(DESCRIPTION)
    writer.add_license("mit")
    writer.add_languages(["en"])
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.n_ctx)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(config.n_ff)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_head_kv)
    writer.add_rope_freq_base(config.rope_freq_base)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(config.n_vocab)
    writer.add_rope_dimension_count(config.n_embd_head)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def add_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    """Tokens, merges and the control tokens of the trained tokenizer."""
    model = json.loads(path.read_text(encoding="utf-8"))["model"]
    tokens = sorted(model["vocab"], key=lambda token: model["vocab"][token])
    types = [gguf.TokenType.NORMAL] * len(tokens)
    types[BOS_ID] = types[EOS_ID] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(BOS_ID)
    writer.add_eos_token_id(EOS_ID)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)


def add_tensors(writer: gguf.GGUFWriter, model: Llama) -> None:
    """Matrices as q8_0, norms as f32; the parameters already carry the GGUF names."""
    for name, parameter in model.state_dict().items():
        data = parameter.float().numpy()
        if data.ndim == 1:
            writer.add_tensor(name, data)
            continue
        q8_0 = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quantize(data, q8_0), raw_dtype=q8_0)


def export(tokenizer: Path, checkpoint: Path, out: Path) -> None:
    model = Llama(ModelConfig())
    model.load_state_dict(torch.load(checkpoint)["model"])
    out.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(out, "llama")
    add_hyper_parameters(writer, model.config)
    add_tokenizer(writer, tokenizer)
    add_tensors(writer, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    n_bytes = out.stat().st_size
    print(f"{out}: {n_bytes} bytes")
    if n_bytes > MAX_BYTES:
        raise SystemExit(f"more than {MAX_BYTES} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--run", type=Path, required=True, help="folder with checkpoint.pt")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    export(args.data / "tokenizer.json", args.run / "checkpoint.pt", args.out)


if __name__ == "__main__":
    main()

"""Read the GGUF back, dequantise it, tell stories with it and measure its held-out loss.

    python -m training.sample ggmlpy/data/stories.gguf --temp 0.8 -p "Once upon a time"

An independent reading of the file in plain PyTorch: slow, and meant only for checking.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from training.model import Llama, ModelConfig
from training.tokenizer import BOS_ID, EOS_ID
from training.train import held_out_loss

PROMPTS = (
    "Once upon a time",
    "Lily and Tom went to the",
    "One day, a little dog",
    "The sun was shining",
    "There was a big storm",
    "Ben was afraid of",
    "Once there was a rabbit named Pip. He had a red",
    "It was a cold winter day",
    "Grandma had an idea",
    '"Look!" said Anna.',
)


def load_config(reader: gguf.GGUFReader) -> ModelConfig:
    def value(key: str) -> float:
        field = reader.get_field(key)
        if field is None:
            raise SystemExit(f"the file has no {key}")
        return float(field.contents())

    return ModelConfig(
        n_vocab=int(value("llama.vocab_size")),
        n_ctx=int(value("llama.context_length")),
        n_embd=int(value("llama.embedding_length")),
        n_layer=int(value("llama.block_count")),
        n_head=int(value("llama.attention.head_count")),
        n_head_kv=int(value("llama.attention.head_count_kv")),
        n_ff=int(value("llama.feed_forward_length")),
        norm_eps=value("llama.attention.layer_norm_rms_epsilon"),
        rope_freq_base=value("llama.rope.freq_base"),
    )


def load_model(reader: gguf.GGUFReader) -> Llama:
    """The model with the weights as they are in the file, dequantised to f32."""
    model = Llama(load_config(reader))
    weights = {
        tensor.name: torch.from_numpy(
            np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        )
        for tensor in reader.tensors
    }
    model.load_state_dict(weights)
    return model.eval()  # type: ignore[no-any-return]


def load_tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    """The tokenizer rebuilt from the lists in the file."""

    def strings(key: str) -> list[str]:
        field = reader.get_field(key)
        if field is None:
            raise SystemExit(f"the file has no {key}")
        return list(field.contents())

    tokens = strings("tokenizer.ggml.tokens")
    pairs = (pair.split(" ") for pair in strings("tokenizer.ggml.merges"))
    merges = [(left, right) for left, right in pairs]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def generate(model: Llama, ids: list[int], temperature: float, eos_id: int) -> Iterator[int]:
    """New ids until EOS or the end of the context; temperature 0 takes the likeliest."""
    ids = list(ids)
    while len(ids) < model.config.n_ctx:
        with torch.no_grad():
            logits = model(torch.tensor([ids]))[0, -1]
        if temperature == 0:
            chosen = int(logits.argmax())
        else:
            chosen = int(torch.multinomial((logits / temperature).softmax(-1), 1))
        if chosen == eos_id:
            return
        ids.append(chosen)
        yield chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("-p", "--prompt", action="append", help="may be given several times")
    parser.add_argument("--temp", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--held-out", type=Path, help="held_out.npz: measure the loss instead")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    reader = gguf.GGUFReader(args.model)
    model, tokenizer = load_model(reader), load_tokenizer(reader)
    if args.held_out:
        print(f"held-out loss {held_out_loss(model, args.held_out, 1000):.4f}")
        return
    for prompt in args.prompt or PROMPTS:
        ids = [BOS_ID, *tokenizer.encode(prompt).ids]
        story = tokenizer.decode(list(generate(model, ids, args.temp, EOS_ID)))
        print(f"## {prompt}|{story}\n", flush=True)


if __name__ == "__main__":
    main()

"""Train the byte-level BPE tokenizer (GPT-2's splitting rule) and tokenise the corpus.

python -m training.tokenizer --out build/stories
"""

import argparse
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from training.make_corpus import read_stories

BOS, EOS = "<s>", "</s>"
BOS_ID, EOS_ID = 0, 1
N_VOCAB = 2048


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """256 bytes, two control tokens, and merges up to N_VOCAB tokens."""
    tokenizer = Tokenizer(models.BPE())
    # use_regex splits text with exactly the rule that GGUF files call "gpt-2".
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=N_VOCAB,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode_stories(tokenizer: Tokenizer, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """All stories as one array of ids, each BOS ... EOS, and the index where each one starts."""
    rows = [[BOS_ID, *encoding.ids, EOS_ID] for encoding in tokenizer.encode_batch(texts)]
    starts = np.cumsum([0, *(len(row) for row in rows)])
    return np.concatenate([np.asarray(row, dtype=np.uint16) for row in rows]), starts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder with the corpus")
    args = parser.parse_args()
    train = read_stories(args.out / "train.jsonl")
    path = args.out / "tokenizer.json"
    if path.exists():  # a run that goes on from older weights must keep their tokens
        tokenizer = Tokenizer.from_file(str(path))
    else:
        # Every word of the corpus is frequent: a tenth gives the same merges as all of it.
        tokenizer = train_tokenizer(train[: len(train) // 10])
        tokenizer.save(str(path))
    for name, texts in (("train", train), ("held_out", read_stories(args.out / "held_out.jsonl"))):
        ids, starts = encode_stories(tokenizer, texts)
        np.savez(args.out / f"{name}.npz", ids=ids, starts=starts)
        print(f"{name}: {len(ids)} tokens, {len(ids) / len(texts):.0f} a story")
    print(f"{tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()

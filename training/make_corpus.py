"""Write the training corpus: one JSON string a line, each a story.

python -m training.make_corpus --out build/stories
"""

import argparse
import json
from pathlib import Path

from training.corpus.story import stories

TRAIN_SEED, HELD_OUT_SEED = 1, 2


def write_stories(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps(text) + "\n" for text in texts), encoding="utf-8")


def read_stories(path: Path) -> list[str]:
    return [str(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the two files")
    parser.add_argument("--n-train", type=int, default=120_000)
    parser.add_argument("--n-held-out", type=int, default=1_000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    train = list(stories(args.n_train, TRAIN_SEED))
    known = set(train)
    held_out = [text for text in stories(args.n_held_out, HELD_OUT_SEED) if text not in known]
    write_stories(args.out / "train.jsonl", train)
    write_stories(args.out / "held_out.jsonl", held_out)
    n_words = sum(len(text.split()) for text in train)
    print(f"{len(train)} stories of {n_words / len(train):.0f} words, {len(held_out)} held out")


if __name__ == "__main__":
    main()

"""Train the story model on the CPU.

    python -m training.train --data build/stories --out build/run --steps 1800

Matrices are trained by Muon, embedding and norms by AdamW: on this small budget Muon reaches a
given loss in far fewer tokens. Set OMP_WAIT_POLICY=passive where other programs use the cores:
threads that spin at every barrier make a step several times as slow there.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from training.corpus import world
from training.model import Llama, ModelConfig

PADDING = -100  # what cross_entropy leaves out


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """What decides the result, next to the corpus and the model's shape."""

    n_steps: int
    lr: float
    n_stories: int = 16
    n_warmup: int = 30
    decay: float = 0.6  # the share of the steps in which the rate falls to zero
    carried_weight: float = 5.0  # how much more a carried word counts; falls to 1 with the rate
    weight_decay: float = 0.05
    grad_clip: float = 1.0
    seed: int = 7


class Batches:
    """Batches of n_stories single stories; every eighth batch fills whole contexts instead.

    A story alone in its row is what teaches names: the only names to be found are its own. The
    full rows show the model every position of its context, and the border between two stories.
    """

    def __init__(self, path: Path, n_ctx: int, n_stories: int, seed: int) -> None:
        with np.load(path) as data:
            self.ids, self.starts = data["ids"].astype(np.int64), data["starts"]
        self.n_ctx, self.n_stories = n_ctx, n_stories
        self.rng = np.random.default_rng(seed)
        self.order: list[int] = []
        self.pool: list[list[np.ndarray]] = []
        self.n_batches = 0

    def next_story(self) -> np.ndarray:
        if not self.order:
            self.order = list(self.rng.permutation(len(self.starts) - 1))
        i = self.order.pop()
        story: np.ndarray = self.ids[self.starts[i] : self.starts[i + 1]]
        return story[: self.n_ctx + 1]

    def next_rows(self) -> list[np.ndarray]:
        self.n_batches += 1
        if self.n_batches % 8 == 0:
            return [self.full_row() for _ in range(max(1, self.n_stories // 3))]
        if not self.pool:  # stories of about one length together: less padding
            stories = sorted((self.next_story() for _ in range(16 * self.n_stories)), key=len)
            n = self.n_stories
            groups = [stories[i : i + n] for i in range(0, len(stories), n)]
            self.pool = [groups[i] for i in self.rng.permutation(len(groups))]
        return self.pool.pop()

    def full_row(self) -> np.ndarray:
        parts: list[np.ndarray] = []
        while sum(map(len, parts)) <= self.n_ctx:
            parts.append(self.next_story())
        return np.concatenate(parts)[: self.n_ctx + 1]

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets [B, T]; targets beyond the end of a row are PADDING."""
        rows = self.next_rows()
        shape = (len(rows), max(map(len, rows)) - 1)
        inputs, targets = np.zeros(shape, np.int64), np.full(shape, PADDING)
        for i, row in enumerate(rows):
            inputs[i, : len(row) - 1] = row[:-1]
            targets[i, : len(row) - 1] = row[1:]
        return torch.from_numpy(inputs), torch.from_numpy(targets)


def carried_words(tokenizer: Tokenizer, n_vocab: int) -> Tensor:
    """1 for the tokens that a story must carry along (names, colours, things, animals), else 0."""
    words = {*world.GIRLS, *world.BOYS, *world.COLORS, *world.TOYS, *world.KEEPSAKES}
    words |= {name for names in world.PET_NAMES.values() for name in names}
    words |= {name for names in world.ANIMAL_NAMES.values() for name in names}
    words |= set(world.ANIMALS)
    carried = torch.zeros(n_vocab)
    for word in words:
        carried[tokenizer.encode(word).ids[-1]] = 1
        carried[tokenizer.encode(f" {word}").ids[-1]] = 1
    return carried


def held_out_loss(model: Llama, path: Path, n_stories: int) -> float:
    """Mean loss a token over single stories, BOS given, EOS predicted."""
    with np.load(path) as data:
        ids, starts = data["ids"].astype(np.int64), data["starts"]
    total, n_tokens = 0.0, 0
    model.eval()
    with torch.no_grad():
        for i in range(min(n_stories, len(starts) - 1)):
            story = torch.from_numpy(ids[starts[i] : starts[i + 1]])[None, : model.config.n_ctx + 1]
            total += float(model.loss(story)) * (story.shape[1] - 1)
            n_tokens += story.shape[1] - 1
    model.train()
    return total / n_tokens


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear warm-up, a constant rate, then a linear fall to zero.

    Before the fall begins, a run can still be stopped and resumed with another number of steps.
    """
    warm = (step + 1) / config.n_warmup
    left = (config.n_steps - step) / (config.decay * config.n_steps)
    return config.lr * min(1.0, warm, left)


def make_optimizers(model: Llama, config: TrainConfig) -> list[Any]:
    """Muon for the matrices of the blocks, AdamW for everything else."""
    matrices = [p for p in model.blk.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if all(p is not m for m in matrices)]
    muon = torch.optim.Muon(
        matrices,
        lr=config.lr,
        weight_decay=config.weight_decay,
        adjust_lr_fn="match_rms_adamw",  # so that one learning rate serves both optimisers
    )
    adamw = torch.optim.AdamW(others, lr=config.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    return [muon, adamw]


def save_checkpoint(path: Path, model: Llama, optimizers: list[Any], state: dict[str, Any]) -> None:
    """Write aside and rename: an interruption never leaves half a file."""
    part = path.with_suffix(".part")
    torch.save(
        {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], **state},
        part,
    )
    part.replace(path)


def training_loss(model: Llama, batch: tuple[Tensor, Tensor], weight: Tensor) -> Tensor:
    inputs, targets = batch
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(inputs)
    return F.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), weight, ignore_index=PADDING
    )


def train(data: Path, out: Path, config: TrainConfig, init: Path | None, save_s: float) -> None:
    """Train from scratch, from the weights in init, or on from the checkpoint in out."""
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(config.seed)
    model = Llama(ModelConfig())
    if init:
        model.load_state_dict(torch.load(init)["model"])
    optimizers = make_optimizers(model, config)
    batches = Batches(data / "train.npz", model.config.n_ctx, config.n_stories, config.seed)
    tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
    carried = carried_words(tokenizer, model.config.n_vocab)
    first_step, n_tokens, wall_s = 0, 0, 0.0
    checkpoint = out / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        first_step, n_tokens, wall_s = state["step"], state["n_tokens"], state["wall_s"]
        for _ in range(first_step):
            batches.next_batch()
    n_params = sum(p.numel() for p in model.parameters())
    print(f"{n_params} parameters, from step {first_step}", flush=True)
    start = saved_at = time.perf_counter()
    for step in range(first_step, config.n_steps):
        lr = learning_rate(config, step)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = lr
        batch = batches.next_batch()
        weight = 1 + (config.carried_weight - 1) * carried * (lr / config.lr)
        loss = training_loss(model, batch, weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        n_tokens += int((batch[1] != PADDING).sum())
        now = time.perf_counter()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} lr {lr:.2e} {now - start:.0f} s", flush=True)
        if now - saved_at > save_s or step == config.n_steps - 1:
            state = {"step": step + 1, "n_tokens": n_tokens, "wall_s": wall_s + now - start}
            save_checkpoint(checkpoint, model, optimizers, state)
            saved_at = now
            quick = held_out_loss(model, data / "held_out.npz", 50)
            print(f"step {step} held-out loss {quick:.4f} (50 stories)", flush=True)
    result = {
        "held_out_loss": held_out_loss(model, data / "held_out.npz", 1000),
        "n_parameters": n_params,
        "n_tokens": n_tokens,
        "wall_s": wall_s + time.perf_counter() - start,
        "model": model.config.to_dict(),
        "train": asdict(config),
    }
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--init", type=Path, help="a checkpoint whose weights to start from")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-every", type=float, default=180, help="seconds")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = TrainConfig(n_steps=args.steps, lr=args.lr, seed=args.seed)
    train(args.data, args.out, config, args.init, args.save_every)


if __name__ == "__main__":
    main()

"""Train the story model on the CPU.

    python -m training.train --data build/stories --out build/run --steps 1800

Matrices are trained by Muon, embedding and norms by AdamW: on this small budget Muon reaches a
given loss in far fewer tokens. Each row starts at the start of a story; the stories in a row
are parted by EOS and BOS, and attention may look back across them, as it does when a program
goes on generating after the end of a story.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.model import Llama, ModelConfig


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """What decides the result, next to the corpus and the model's shape."""

    n_steps: int
    lr: float
    n_rows: int = 8
    n_warmup: int = 50
    decay: float = 0.4  # the share of the steps in which the rate falls to zero
    weight_decay: float = 0.05
    grad_clip: float = 1.0
    seed: int = 7


class Rows:
    """Rows of n_ctx + 1 ids, each starting with a story; every epoch shuffles the stories."""

    def __init__(self, path: Path, n_ctx: int, seed: int) -> None:
        with np.load(path) as data:
            self.ids, self.starts = data["ids"], data["starts"]
        self.n_ctx = n_ctx
        self.rng = np.random.default_rng(seed)
        self.order: list[int] = []

    def next_row(self) -> np.ndarray:
        parts: list[np.ndarray] = []
        n_missing = self.n_ctx + 1
        while n_missing > 0:
            if not self.order:
                self.order = list(self.rng.permutation(len(self.starts) - 1))
            i = self.order.pop()
            part = self.ids[self.starts[i] : self.starts[i + 1]][:n_missing]
            parts.append(part)
            n_missing -= len(part)
        return np.concatenate(parts)

    def batch(self, n_rows: int) -> Tensor:
        return torch.from_numpy(np.stack([self.next_row() for _ in range(n_rows)]).astype(np.int64))


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


def train(data: Path, out: Path, config: TrainConfig, save_every_s: float, compiled: bool) -> None:
    """Train from scratch, or go on from the checkpoint in out."""
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(config.seed)
    model = Llama(ModelConfig())
    optimizers = make_optimizers(model, config)
    rows = Rows(data / "train.npz", model.config.n_ctx, config.seed)
    first_step, wall_s = 0, 0.0
    checkpoint = out / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        first_step, wall_s = state["step"], state["wall_s"]
        for _ in range(first_step * config.n_rows):
            rows.next_row()
    n_params = sum(p.numel() for p in model.parameters())
    print(f"{n_params} parameters, from step {first_step}", flush=True)
    loss_of = torch.compile(model.loss) if compiled else model.loss
    start = saved_at = time.perf_counter()
    for step in range(first_step, config.n_steps):
        lr = learning_rate(config, step)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = lr
        batch = rows.batch(config.n_rows)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        now = time.perf_counter()
        if step % 10 == 0 or step == config.n_steps - 1:
            done = step + 1 - first_step
            speed = done * config.n_rows * model.config.n_ctx / (now - start)
            print(f"step {step} loss {loss.item():.4f} lr {lr:.2e} {speed:.0f} tok/s", flush=True)
        if now - saved_at > save_every_s or step == config.n_steps - 1:
            state = {"step": step + 1, "wall_s": wall_s + now - start}
            save_checkpoint(checkpoint, model, optimizers, state)
            saved_at = now
            quick = held_out_loss(model, data / "held_out.npz", 100)
            print(f"step {step} held-out loss {quick:.4f} (100 stories)", flush=True)
    result = {
        "held_out_loss": held_out_loss(model, data / "held_out.npz", 1000),
        "n_parameters": n_params,
        "n_tokens": config.n_steps * config.n_rows * model.config.n_ctx,
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
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-every", type=float, default=180, help="seconds")
    parser.add_argument("--compile", action="store_true", help="needs a C++ compiler")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = TrainConfig(n_steps=args.steps, lr=args.lr)
    train(args.data, args.out, config, args.save_every, args.compile)


if __name__ == "__main__":
    main()

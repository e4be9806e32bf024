"""Training: ``python -m examples.nano_k3.train KIT OUT --seconds T``.

KIT holds what ``examples.nano_k3.data`` and ``examples.nano_k3.dialogue`` wrote. Trains for T seconds, the learning rate
following the clock, then measures and writes the checkpoint to ``OUT/checkpoint`` and all figures to
``OUT/training.json``. With ``--until S`` it stops S seconds into the T and keeps its state in ``--state``, from where the
same command without ``--until`` goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from examples.nano_k3.data import Kind, Makers, Text, load
from examples.nano_k3.evaluate import dialogues_score, documents_loss
from examples.nano_k3.model import BIAS, Model, Parameters, grouped_products_work, initial, untrained
from examples.nano_k3.mxfp4 import rounded
from examples.nano_k3.optimizer import Optimizer
from examples.nano_k3.publish import publish
from examples.nano_k3.shape import SHAPE, TINY
from examples.nano_k3.steps import Step
from examples.shaped.kimi_k3 import K3Shape
from truecast.models.kimi_k3.tokenizer import K3Tokenizer, open_tokenizer


@dataclass(frozen=True, slots=True)
class Settings:
    """How to train."""

    shape: K3Shape
    kinds: tuple[Kind, ...]
    rate: float
    seed: int = 0
    makers: int = 8
    warm_up: float = 0.02
    final: float = 0.02
    """Share of the rate that is left at the end."""
    clip: float = 1.0
    balance: float = 2e-3
    """Step of the router's bias, against the sign of an expert's load."""
    save_every: float = 120.0
    eval_tokens: int = 1 << 17


BIG = Settings(
    SHAPE,
    (Kind("text", 32, 1024, 0.5), Kind("short", 64, 192, 0.25), Kind("long", 48, 512, 0.25)),
    rate=2e-3,
)
SMALL = Settings(
    TINY,
    (Kind("text", 2, 128, 0.3), Kind("short", 12, 160, 0.7)),
    rate=4e-3,
    makers=1,
    save_every=1e9,
    eval_tokens=1 << 13,
)
"""For trials on a CPU: the tiny shape, and no long dialogues."""


def rate_at(settings: Settings, progress: float) -> float:
    """Learning rate: up in a straight line, then down as a cosine, by the share of the time that has passed."""
    if progress < settings.warm_up:
        return settings.rate * max(progress, 1e-4) / settings.warm_up
    turned = (1 + math.cos(math.pi * (progress - settings.warm_up) / (1 - settings.warm_up))) / 2
    return settings.rate * (settings.final + (1 - settings.final) * turned)


class Trainer:
    """Parameters, optimizer, and what a step does with them."""

    def __init__(self, settings: Settings, device: torch.device, vocabulary: Path) -> None:
        self.settings, self.device, self.vocabulary = settings, device, vocabulary
        self.parameters: Parameters = {n: p.to(device) for n, p in initial(settings.shape, settings.seed).items()}
        trained = {n: p for n, p in self.parameters.items() if not untrained(n)}
        self.gradients = {name: torch.zeros_like(parameter) for name, parameter in trained.items()}
        experts = next(p for n, p in self.parameters.items() if ".experts." in n)
        if not torch.equal(rounded(experts).cpu(), rounded(experts.cpu())):
            raise RuntimeError(f"{device} rounds to MXFP4 otherwise than the CPU")
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        grouped = grouped_products_work(device)
        print(f"experts: {'grouped products' if grouped else 'all experts on all tokens'}", flush=True)
        self.model = Model(settings.shape, self.parameters, dtype, grouped)
        self.optimizer = Optimizer(trained, self.gradients)
        self.steps = {kind.name: Step(self.model, kind, self.gradients) for kind in settings.kinds}
        self.norm = torch.zeros((), device=device)
        self.imbalance = torch.zeros((), device=device)

    def record(self) -> bool:
        """Turn the steps into graphs, or leave all of them eager. Needs a batch fed to each."""
        if self.device.type != "cuda":
            return False
        try:
            pool = None
            for step in self.steps.values():
                pool = step.record(pool)
        except RuntimeError as error:
            print(f"no graphs: {str(error).splitlines()[0]}", flush=True)
            for step in self.steps.values():
                step.graph = None
            torch.cuda.synchronize()
            return False
        finally:
            torch._foreach_zero_(list(self.gradients.values()))
            self.model.load.zero_()
        return True

    def step(self, rate: float) -> None:
        """One update from the batches that were fed."""
        gradients = list(self.gradients.values())
        torch._foreach_zero_(gradients)
        for step in self.steps.values():
            step.run()
        norms = torch.stack(torch._foreach_norm(gradients))
        self.norm = torch.linalg.vector_norm(norms)
        torch._foreach_mul_(gradients, (self.settings.clip / (self.norm + 1e-6)).clamp(max=1.0))
        self.optimizer.step(rate)
        self.model.refresh()
        self._balance(rate / self.settings.rate)

    def _balance(self, share: float) -> None:
        """Move each router's bias towards the experts with fewer tokens than the mean."""
        load = self.model.load[1:]
        mean = load.mean(1, keepdim=True)
        self.imbalance = (load.amax(1, keepdim=True) / mean.clamp(min=1)).max()
        moves = self.settings.balance * share * torch.sign(mean - load)
        moves -= moves.mean(1, keepdim=True)
        biases = [p for n, p in self.parameters.items() if n.endswith(BIAS)]
        torch._foreach_add_(biases, list(moves))
        load.zero_()


def save_state(path: Path, trainer: Trainer, elapsed: float, number: int) -> None:
    """Everything needed to go on, as .npy arrays in one .npz."""
    arrays = {f"parameter/{n}": p for n, p in trainer.parameters.items()} | trainer.optimizer.state()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial.npz")
    np.savez(
        partial, elapsed=elapsed, number=number, steps=trainer.optimizer.steps,
        **{name: tensor.cpu().numpy() for name, tensor in arrays.items()},
    )  # fmt: skip
    partial.replace(path)


def load_state(path: Path, trainer: Trainer) -> tuple[float, int]:
    """Go on from :func:`save_state`. Returns the seconds trained and the number of steps."""
    with np.load(path, allow_pickle=False) as held:
        tensors = {name: torch.from_numpy(held[name]) for name in held.files if "/" in name}
        for name, parameter in trainer.parameters.items():
            parameter.copy_(tensors[f"parameter/{name}"])
        trainer.model.refresh()
        trainer.optimizer.restore(tensors, int(held["steps"]))
        return float(held["elapsed"]), int(held["number"])


def train(
    settings: Settings, kit: Path, out: Path, seconds: float, until: float | None = None, state: Path | None = None
) -> dict[str, Any]:
    """Train, and return the figures. See the module."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = open_tokenizer(kit)
    trainer = Trainer(settings, device, kit)
    done, number = load_state(state, trainer) if state and state.exists() else (0.0, 0)
    dialogue_kinds = [kind for kind in settings.kinds if kind.name != "text"]
    makers = Makers(kit, dialogue_kinds, settings.seed + 1000 * number, settings.makers)
    try:
        log = _loop(settings, trainer, kit, out, makers, tokenizer, done, number, seconds, until or seconds)
    finally:
        makers.stop()
    reached = log[-1]["seconds"] if log else done
    if state:
        save_state(state, trainer, reached, log[-1]["step"] if log else number)
    results: dict[str, Any] = {}
    if until is None or until >= seconds:
        results = measure(trainer, tokenizer, kit)
    made = publish(out / "checkpoint", settings.shape, trainer.parameters, kit)
    print(f"checkpoint: {made}", flush=True)
    figures = {"settings": asdict(settings), "device": _name(device), "results": results, "log": log}
    earlier = out / "training.json" if state is None else state.with_suffix(".log.json")
    if state is not None:
        if earlier.exists() and done:
            figures["log"] = json.loads(earlier.read_text()) + log
        earlier.write_text(json.dumps(figures["log"]))
    (out / "training.json").write_text(json.dumps(figures, indent=1))
    return figures


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name() if device.type == "cuda" else "CPU"


def _loop(
    settings: Settings, trainer: Trainer, kit: Path, out: Path, makers: Makers, tokenizer: K3Tokenizer, done: float,
    number: int, seconds: float, until: float,
) -> list[dict[str, Any]]:  # fmt: skip
    pad = tokenizer.special("[PAD]")
    text = Text(*load(kit / "text.xz"), seed=settings.seed + number)
    pieces = {kind.name: text.batches(kind, pad) for kind in settings.kinds if kind.name == "text"}
    log: list[dict[str, Any]] = []
    good = {name: p.clone() for name, p in trainer.parameters.items()}
    scale, first = 1.0, number
    tokens = dict.fromkeys(trainer.steps, 0)

    def feed() -> None:
        for name, step in trainer.steps.items():
            batch = next(pieces[name]) if name in pieces else makers.next(name)
            tokens[name] += int(batch.live.sum())
            step.feed(batch)

    feed()
    print(f"graphs: {'yes' if trainer.record() else 'no'}", flush=True)
    begun = last_saved = time.monotonic()
    while True:
        elapsed = done + time.monotonic() - begun
        if elapsed >= until:
            break
        trainer.step(rate_at(settings, elapsed / seconds) * scale)
        number += 1
        feed()
        if (number - first) % 20 and number != first + 1:
            continue
        line = {
            "step": number,
            "seconds": round(done + time.monotonic() - begun, 2),
            **{name: round(step.loss.item(), 4) for name, step in trainer.steps.items()},
            "gradient": round(trainer.norm.item(), 4),
            "imbalance": round(trainer.imbalance.item(), 3),
            "rate": rate_at(settings, elapsed / seconds) * scale,
            "epoch": text.epoch,
            "tokens": dict(tokens),
        }
        if not all(math.isfinite(line[name]) for name in (*trainer.steps, "gradient")):
            print(f"step {number}: not finite; back to the last good parameters at half the rate", flush=True)
            _restore(trainer, good)
            scale /= 2
            continue
        log.append(line)
        if (number - first) % 100 == 0 or number == first + 1:
            seen = sum(tokens.values()) / (time.monotonic() - begun)
            print(f"{json.dumps(line)} {seen:,.0f} tokens/s", flush=True)
        if time.monotonic() - last_saved > settings.save_every:
            last_saved = time.monotonic()
            good = {name: p.clone() for name, p in trainer.parameters.items()}
            publish(out / "checkpoint", settings.shape, trainer.parameters, kit)
            (out / "training.json").write_text(json.dumps({"settings": asdict(settings), "results": {}, "log": log}))
    if trainer.device.type == "cuda":
        print(f"memory: {torch.cuda.max_memory_reserved() / 1e9:.1f} GB reserved", flush=True)
    if not all(bool(torch.isfinite(p).all()) for p in trainer.parameters.values()):
        _restore(trainer, good)
    return log


def _restore(trainer: Trainer, good: dict[str, Tensor]) -> None:
    for name, parameter in trainer.parameters.items():
        parameter.copy_(good[name])
    trainer.model.refresh()
    trainer.optimizer.restore({n: torch.zeros_like(t) for n, t in trainer.optimizer.state().items()}, 0)


def measure(trainer: Trainer, tokenizer: K3Tokenizer, kit: Path) -> dict[str, Any]:
    """Held-out loss and answers, with the weights as they are stored."""
    budget = trainer.settings.eval_tokens
    flat, lengths = load(kit / "heldout.xz")
    pieces = np.split(flat, np.cumsum(lengths)[:-1])
    longest = 4096 if trainer.device.type == "cuda" else 256
    chosen = [piece[:longest] for piece in pieces[: len(pieces) if longest == 4096 else 12]]
    items = [json.loads(line) for line in (kit / "dialogues.jsonl").read_text().splitlines()]
    if trainer.device.type == "cpu":
        items = [item for item in items if item["tools"] is None][::8]
    begun = time.monotonic()
    results: dict[str, Any] = {"documents": documents_loss(trainer.model, chosen, budget)}
    results["documents"]["pieces"] = len(chosen)
    print(json.dumps(results), flush=True)
    results["dialogues"] = dialogues_score(trainer.model, tokenizer, items, max(1, budget // 512))
    print(f"{json.dumps(results['dialogues']['right'])} {time.monotonic() - begun:.0f} s", flush=True)
    return results


def main() -> int:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m examples.nano_k3.train", description=__doc__)
    parser.add_argument("kit", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, required=True, help="seconds of training in all")
    parser.add_argument("--until", type=float, help="stop after so many of them")
    parser.add_argument("--state", type=Path, help=".npz to go on from, and to keep")
    parser.add_argument("--tiny", action="store_true", help="the trial shape")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    train(SMALL if given.tiny else BIG, given.kit, given.out, given.seconds, given.until, given.state)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Variants of one recipe, trained on the same text for the same number of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from training.checkpoint import load_checkpoint, save_checkpoint
from training.drafter import Drafter, DrafterConfig
from training.exact_loop import ExactLoop, quiet_length
from training.held_out import held_out_prompts
from training.run import Budget, Run, Source
from training.start import start_from_target
from training.target import Target
from training.trainer import Recipe, Trainer
from training.wave import Wave

MAX_TOKENS = 128  # of an answer in the exact loop


@dataclass(frozen=True)
class Variant:
    name: str
    sizes: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)


VARIANTS = (
    Variant("base"),
    Variant("without conv", recipe={"conv": False}),
    Variant("3 layers", {"n_layer": 3}),
    Variant("5 layers", {"n_layer": 5}),
    Variant("labels: written tokens", recipe={"soft": 0.0, "sampled_soft": 0.0}),
    Variant("rank 64", {"rank": 64}),
    Variant("rank 128", {"rank": 128}),
    Variant("block 16", {"block_size": 16}),
    Variant("labels: distributions", recipe={"soft": 1.0}),
    Variant("weights by depth alone", recipe={"reach": 0.0}),
)


class _Fixed:
    """A wave again and again."""

    def __init__(self, wave: Wave) -> None:
        self.wave = wave

    def write(self) -> Wave:
        return self.wave


def ablate(
    target: Target,
    source: Source,
    loop: ExactLoop,
    base: DrafterConfig,
    recipe: Recipe,
    budget: Budget,
    directory: Path,
    log: Callable[[str], None],
    variants: Sequence[Variant],
) -> None:
    """Logs the exact lengths of each variant on the held-out prompts, with and without selector."""
    wave = source.write()
    prompts = [prompt for _, prompt in held_out_prompts()]
    for variant in variants:
        torch.manual_seed(0)
        drafter = Drafter(replace(base, **variant.sizes))
        start_from_target(drafter, loop.weights)
        trainer = Trainer(
            drafter.to(target.device), target.embed, target.head, replace(recipe, **variant.recipe)
        )
        run = Run(trainer, _Fixed(wave), budget, directory, lambda _: None)
        curve = run.train(save=False)
        save_checkpoint(drafter, directory)
        saved = load_checkpoint(directory)
        lengths = []
        for temperature in (0.0, 1.0):
            runs = loop.run(saved, prompts, temperature, MAX_TOKENS, (1.0, 0.0))
            lengths += [quiet_length(result) for result in runs]
        log(
            f"{variant.name:28} {run.step:5} steps {run.seconds:5.0f} s  loss {curve[-1].loss:.3f}"
            f"  T=0 {lengths[0]:.3f} (no selector {lengths[1]:.3f})"
            f"  T=1 {lengths[2]:.3f} (no selector {lengths[3]:.3f})"
        )

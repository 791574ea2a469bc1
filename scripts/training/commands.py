"""The commands of scripts/train_drafter.py."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from training.ablation import VARIANTS, ablate
from training.checkpoint import load_checkpoint, save_checkpoint
from training.drafter import Drafter
from training.exact_loop import ExactLoop
from training.head_counts import token_counts, write_counts
from training.held_out import held_out_prompts
from training.prompt_pool import make_prompts
from training.run import Budget, Run
from training.settings import MASK_TOKENS, drafter_config
from training.start import start_from_target
from training.target import Target
from training.target_weights import TargetWeights, load_weights
from training.text_source import TextSource
from training.trainer import Recipe, Trainer
from training.training_error import TrainingError
from training.vocabulary import Vocabulary, load_vocabulary
from training.writer import Writer, make_scripts

N_POOL = 30_000  # prompts
N_VALIDATION = 192  # of them, not trained on: the selector's scale is chosen there
TEMPERATURES = (0.0, 0.7, 1.0)
SIZES: dict[str, tuple[int | None, str]] = {  # of the drafter: default and help
    "layers": (4, "(default: {})"),
    "ffn": (None, "feed-forward width (default: the target's)"),
    "taps": (5, "tapped layers (default: {})"),
    "block_size": (8, "(default: {})"),
    "conv_group": (32, "(default: {})"),
    "rank": (32, "selector (default: {})"),
    "top_k": (16, "candidates (default: {})"),
    "mask_token": (None, f"(default: the first of {', '.join(MASK_TOKENS)})"),
}


def add_commands(commands: Any) -> None:
    train = _command(commands, "train", _train, "train a drafter")
    train.add_argument("out", type=Path, help="folder of the run and of the checkpoint")
    _add_sizes(train)
    train.add_argument(
        "--init-from", type=Path, help="checkpoint to go on from, with its sizes (default: TARGET)"
    )
    train.add_argument("--texts", type=Path, help="your text or JSONL (default: self-written)")
    train.add_argument("--no-evaluation", action="store_true", help="skip the exact loop")
    recipe = train.add_argument_group("recipe")
    for f in dataclasses.fields(Recipe):
        if f.type in ("float", "int"):
            kind = float if f.type == "float" else int
            recipe.add_argument(_flag(f.name), type=kind, default=f.default, help="(%(default)s)")

    ablation = _command(commands, "ablate", _ablate, "variants of the recipe at equal steps")
    ablation.add_argument("out", type=Path, help="folder for the checkpoints in between")
    _add_sizes(ablation)
    ablation.add_argument("--n-anchor", type=int, default=Recipe.n_anchor, help="(%(default)s)")

    evaluate = _command(commands, "evaluate", _evaluate, "accept lengths by the exact loop")
    evaluate.add_argument("checkpoint", type=Path)
    evaluate.add_argument("--temperatures", type=float, nargs="+", default=TEMPERATURES)

    count = _command(commands, "count", _count, "token counts of text that the target writes")
    count.add_argument("out", type=Path, help="file of one count a line, token 0 first")
    _add_rows(count)


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    parser.add_argument("target", type=Path, help="GGUF file or Hugging Face directory")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=256, help="of an answer in the loop")
    return parser


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _add_rows(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=4096, help="of a wave (default: %(default)s)")
    parser.add_argument("--length", type=int, default=640, help="of a row (default: %(default)s)")


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, help="of writing and training together")
    budget.add_argument("--steps", type=int)
    _add_rows(parser)
    parser.add_argument("--batch", type=int, default=32, help="rows a step (default: %(default)s)")
    parser.add_argument("--passes", type=int, default=6, help="over a wave (default: %(default)s)")
    sizes = parser.add_argument_group("drafter")
    for name, (default, text) in SIZES.items():
        kind = str if name == "mask_token" else int
        sizes.add_argument(_flag(name), type=kind, help=text.format(default))


def _use_default_sizes(args: argparse.Namespace) -> None:
    for name, (default, _) in SIZES.items():
        if getattr(args, name) is None:
            setattr(args, name, default)


class _Setup:
    """What every command starts from."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device(args.device)
        self.weights: TargetWeights = load_weights(args.target)
        self.vocabulary: Vocabulary = load_vocabulary(args.target)
        self.loop = ExactLoop(self.weights, self.vocabulary, self.device, _log)
        held_out = {prompt for _, prompt in held_out_prompts()}
        prompts = make_prompts(N_POOL, held_out, args.seed)
        self.validation, self.prompts = prompts[:N_VALIDATION], prompts[N_VALIDATION:]
        torch.manual_seed(args.seed)

    def target(self, taps: tuple[int, ...]) -> Target:
        on_cuda = self.device.type == "cuda"
        dtype = torch.bfloat16 if on_cuda else torch.float32
        return Target(self.weights, taps, self.device, dtype, compile=on_cuda)

    def writer(self, target: Target) -> Writer:
        scripts = make_scripts(self.vocabulary, self.prompts, self.device)
        eog = self.vocabulary.eog
        return Writer(target, scripts, eog, self.args.rows, self.args.length)

    def budget(self) -> Budget:
        args = self.args
        return Budget(args.minutes, args.steps, args.passes, args.batch)


def _train(args: argparse.Namespace) -> None:
    setup = _Setup(args)
    if args.init_from:
        drafter = _kept(args, setup.weights)
    else:
        _use_default_sizes(args)
        drafter = Drafter(drafter_config(setup.weights, setup.vocabulary, args))
        start_from_target(drafter, setup.weights)
    recipe = Recipe(**{f: v for f, v in vars(args).items() if f in Recipe.__dataclass_fields__})
    if recipe.n_anchor >= args.length:
        raise TrainingError(f"--n-anchor: expected fewer than --length, got {recipe.n_anchor}")
    drafter.to(setup.device)
    with _memory_errors():
        counts, curve = _run(setup, drafter, recipe)
        results: dict[str, Any] = {"curve": [dataclasses.asdict(s) for s in curve]}
        write_counts(counts, args.out / "head-counts.txt")
        save_checkpoint(drafter, args.out)
        if not args.no_evaluation:
            results["scales"] = setup.loop.choose_scale(drafter, setup.validation, args.out)
            saved = load_checkpoint(args.out)
            results["held_out"] = setup.loop.report(saved, TEMPERATURES, args.max_tokens)
    (args.out / "metrics.json").write_text(json.dumps(results), encoding="utf-8")


def _kept(args: argparse.Namespace, weights: TargetWeights) -> Drafter:
    """The drafter of --init-from."""
    given = [_flag(name) for name in SIZES if getattr(args, name) is not None]
    if given:
        raise TrainingError(
            f"{', '.join(given)}: --init-from keeps the checkpoint's sizes; drop it"
        )
    drafter = load_checkpoint(args.init_from)
    config, target = drafter.config, weights.config
    own = (config.n_embd, config.n_vocab, config.n_target_layer)
    expected = (target.n_embd, target.n_vocab, target.n_layer)
    if own != expected:
        raise TrainingError(
            f"{args.init_from}: expected a drafter of this target (hidden size, vocabulary and "
            f"target layers {expected}), got {own}"
        )
    if config.block_size >= args.length:
        raise TrainingError(
            f"--length: expected more than the block size {config.block_size}, got {args.length}"
        )
    return drafter


def _run(setup: _Setup, drafter: Drafter, recipe: Recipe) -> tuple[torch.Tensor, list[Any]]:
    """Trains; the buffers of text are freed when it returns. Returns token counts and the curve."""
    args = setup.args
    target = setup.target(drafter.config.taps)
    source: Any
    if args.texts:
        source = TextSource(target, setup.vocabulary, args.texts, args.rows, args.length)
    else:
        source = setup.writer(target)
    trainer = Trainer(drafter, target.embed, target.head, recipe)
    run = Run(trainer, source, setup.budget(), args.out, _log)
    run.resume()
    curve = run.train()
    return run.counts, curve


def _ablate(args: argparse.Namespace) -> None:
    _use_default_sizes(args)
    setup = _Setup(args)
    config = drafter_config(setup.weights, setup.vocabulary, args)
    with _memory_errors():
        target = setup.target(config.taps)
        writer = setup.writer(target)
        base = Recipe(n_anchor=args.n_anchor)
        ablate(target, writer, setup.loop, config, base, setup.budget(), args.out, _log, VARIANTS)


def _evaluate(args: argparse.Namespace) -> None:
    setup = _Setup(args)
    drafter = load_checkpoint(args.checkpoint)
    with _memory_errors():
        setup.loop.report(drafter, args.temperatures, args.max_tokens)


def _count(args: argparse.Namespace) -> None:
    setup = _Setup(args)
    with _memory_errors():
        wave = setup.writer(setup.target((0,))).write()
    counts = token_counts(wave, setup.weights.config.n_vocab)
    write_counts(counts, args.out)
    _log(f"{args.out}: {int((counts > 0).sum())} of {len(counts)} tokens occur")


@contextmanager
def _memory_errors() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as e:
        raise TrainingError(
            "out of GPU memory; lower --rows (text and features), --batch or --n-anchor (training):"
            f" {str(e).splitlines()[0]}"
        ) from e


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

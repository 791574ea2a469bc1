"""Options that several commands share. Where llama.cpp has an option, it has its name here."""

from __future__ import annotations

import argparse

from dflash2.cli.ui import Ui
from dflash2.engine import Engine
from dflash2.loader import load
from dflash2.types import SamplingParams


def positive(text: str) -> int:
    """A type of argparse."""
    value = int(text)
    if not 0 < value < 2**31:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {value}")
    return value


def add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    group.add_argument("-m", "--model", metavar="FILE", required=True, help="target GGUF")
    group.add_argument(
        "-md",
        "--model-draft",
        "--draft-model",
        metavar="FILE",
        help="drafter GGUF (default: none, plain decoding)",
    )
    group.add_argument(
        "-t", "--threads", metavar="N", type=int, help="(default: half of the logical cores)"
    )
    add_size_options(group, "default: 4096; 0: model's")


def add_size_options(group: argparse._ArgumentGroup, ctx_size: str) -> None:
    """How large models are and where they lie; ctx_size: what its help says."""
    group.add_argument(
        "-c", "--ctx-size", metavar="N", type=int, default=4096, help=f"({ctx_size})"
    )
    group.add_argument(
        "-b", "--batch-size", metavar="N", type=int, default=512, help="(default: 512)"
    )
    group.add_argument(
        "-ngl",
        "--n-gpu-layers",
        metavar="N",
        type=int,
        default=0,
        help="target layers on the GPU (default: 0; -1: all)",
    )
    group.add_argument(
        "-devd",
        "--device-draft",
        metavar="NAME",
        help="device of the drafter (default: that of the target's output head)",
    )


def add_drafting_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("drafting")
    group.add_argument(
        "--spec-draft-n-max",
        "--num-draft-tokens",
        metavar="N",
        type=int,
        help="tokens drafted in every round (default: chosen in each by its measured cost and "
        "what is accepted; 0: plain decoding)",
    )
    group.add_argument(
        "--spec-draft-p-min",
        metavar="P",
        type=float,
        default=0.0,
        help="end a greedy draft before a less likely token (default: 0)",
    )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    defaults = SamplingParams()
    group = parser.add_argument_group("sampling")

    def add(name: str, kind: type, default: float, text: str) -> None:
        group.add_argument(
            name, metavar="N", type=kind, default=default, help=f"(default: {default}; {text})"
        )

    add("--temp", float, defaults.temperature, "0: greedy")
    add("--top-k", int, defaults.top_k, "0: all")
    add("--top-p", float, defaults.top_p, "1: off")
    add("--min-p", float, defaults.min_p, "0: off")
    add("--repeat-penalty", float, defaults.repeat_penalty, "1: off")
    add("--repeat-last-n", int, defaults.repeat_last_n, "-1: all")
    group.add_argument("-s", "--seed", metavar="N", type=int, help="(default: random, printed)")
    group.add_argument(
        "-n",
        "--predict",
        "--max-tokens",
        metavar="N",
        type=int,
        default=-1,
        help="tokens to generate (default: -1, until the end or a full context)",
    )
    group.add_argument("--ignore-eos", action="store_true", help="never end by itself")


def add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--color", action="store_true", help="tint accepted drafts on a terminal")
    group.add_argument("-q", "--quiet", action="store_true", help="nothing besides the answer")


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """Ends the program with a usage error when a value is out of range."""
    try:
        return SamplingParams(
            temperature=args.temp,
            top_k=args.top_k,
            top_p=args.top_p,
            min_p=args.min_p,
            repeat_penalty=args.repeat_penalty,
            repeat_last_n=args.repeat_last_n,
            seed=args.seed,
            max_tokens=None if args.predict == -1 else args.predict,
            ignore_eos=args.ignore_eos,
        )
    except ValueError as e:
        args.usage_error(str(e))
        raise


def load_engine(args: argparse.Namespace, ui: Ui) -> Engine:
    wanted = args.spec_draft_n_max
    engine = load(
        args.model,
        args.model_draft,
        n_ctx=args.ctx_size,
        n_batch=args.batch_size,
        n_threads=args.threads,
        n_gpu_layers=args.n_gpu_layers,
        draft_device=args.device_draft,
        spec_draft_n_max=wanted,
        spec_draft_p_min=args.spec_draft_p_min,
    )
    if args.model_draft and wanted is not None and wanted > engine.spec_draft_n_max:
        ui.warn(f"--spec-draft-n-max {wanted}: the drafter can {engine.spec_draft_n_max}")
    return engine

"""`dflash2 generate`: continue a prompt, or answer it with --chat."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dflash2.cli import options
from dflash2.cli.report import as_json, report, speed_up
from dflash2.cli.ui import Ui
from dflash2.engine import Engine
from dflash2.types import Stats, Token

HELP = "continue a prompt, or answer it with --chat"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompt")
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt; -: read stdin")
    source.add_argument("-f", "--file", metavar="FILE", type=Path, help="file with the prompt")
    group.add_argument(
        "--chat", action="store_true", help="the prompt is a message: apply the chat template"
    )
    group.add_argument(
        "-sys", "--system-prompt", metavar="TEXT", help="system message; implies --chat"
    )
    options.add_model_options(parser)
    options.add_drafting_options(parser)
    options.add_sampling_options(parser)
    options.add_output_options(parser)
    parser.add_argument(
        "--compare-plain", action="store_true", help="decode plainly too, print the speed-up"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    ui = Ui(quiet=args.quiet, color=args.color)
    params = options.sampling_params(args)
    prompt = read_prompt(args)
    with options.load_engine(args, ui) as engine:
        tokens = prompt_tokens(args, engine, prompt)
        answer: list[Token] = []
        interrupted = False
        try:
            for token in engine.stream(tokens, params):
                answer.append(token)
                if not args.json:
                    ui.token(token)
        except KeyboardInterrupt:
            interrupted = True
        text = "".join(token.text for token in answer)
        if not args.json and not text.endswith("\n"):
            print(flush=True)

        stats, reason, seed = engine.stats, engine.finish_reason, engine.seed
        mode, rule = engine.mode, engine.accept_rule
        ids = [token.token for token in answer if token.token >= 0]
        plain: Stats | None = None
        note = ""
        if args.compare_plain and not interrupted:
            other = engine.generate(tokens, params, spec_draft_n_max=0)
            plain = other.stats
            if params.temperature == 0:
                note = difference(ids, list(other.tokens))
        if args.json:
            result: dict[str, Any] = {
                "text": text,
                "tokens": ids,
                "finish_reason": reason,
                "seed": seed,
                "mode": mode,
                "accept_rule": rule,
                "stats": as_json(stats),
            }
            if plain is not None:
                result |= {"plain": as_json(plain), "speed_up": speed_up(stats, plain)}
            print(json.dumps(result, ensure_ascii=False), flush=True)
        if args.seed is None and params.temperature > 0:
            ui.note(f"seed      {seed}")
        ui.note(report(stats, plain, note))
    return 130 if interrupted else 0


def read_prompt(args: argparse.Namespace) -> str:
    """One newline at the end of a file or of stdin does not belong to the prompt."""
    if args.file is not None:
        return str(args.file.read_text(encoding="utf-8")).removesuffix("\n")
    if args.prompt == "-":
        return sys.stdin.read().removesuffix("\n")
    return str(args.prompt)


def prompt_tokens(args: argparse.Namespace, engine: Engine, prompt: str) -> list[int]:
    if not args.chat and args.system_prompt is None:
        return engine.tokenize(prompt)
    messages = [{"role": "user", "content": prompt}]
    if args.system_prompt is not None:
        messages.insert(0, {"role": "system", "content": args.system_prompt})
    return engine.tokenize_chat(messages)


def difference(a: list[int], b: list[int]) -> str:
    """Near-ties may round differently in batches of one and of several rows."""
    if a == b:
        return ", same tokens"
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    return f", differs from token {min(len(a), len(b)) if first is None else first}"

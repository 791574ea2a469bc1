"""The command `dflash2`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from dflash2 import __version__
from dflash2._native import LLAMA_CPP_PYTHON, core
from dflash2.cli import bench, chat, doctor, generate, inspect, measure, migrate, serve, tune, ui
from dflash2.errors import (
    ContextFullError,
    DFlash2Error,
    IncompatibleModelsError,
    ModelFormatError,
)

COMMANDS = {
    "generate": generate,
    "chat": chat,
    "bench": bench,
    "tune": tune,
    "serve": serve,
    "inspect": inspect,
    "doctor": doctor,
    "measure": measure,
    "migrate": migrate,
}

HINTS: dict[type[BaseException], str] = {
    ContextFullError: "a larger -c makes room",
    IncompatibleModelsError: "dflash2 inspect DRAFTER --target TARGET says what a pair lacks",
    ModelFormatError: "-v shows the log of libllama",
}

EXAMPLES = """\
examples:
  dflash2 generate -m target.gguf -md draft.gguf -p "The capital of France is" -n 64
  dflash2 generate -m target.gguf -md draft.gguf --chat -p - --compare-plain < question.txt
  dflash2 chat -m target.gguf -md draft.gguf -ngl -1
  dflash2 measure -m target.gguf -md draft.gguf --traffic log.jsonl --html report.html
  dflash2 inspect draft.gguf --target target.gguf
"""


class Parser(argparse.ArgumentParser):
    """Usage errors in the same form as all others."""

    def error(self, message: str) -> NoReturn:
        ui.error(message, f"{self.prog} --help lists the options")
        sys.exit(2)


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="dflash2",
        description="DFlash 2 speculative decoding for llama.cpp and GGUF.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"dflash2 {__version__} (llama-cpp-python {LLAMA_CPP_PYTHON})"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("--list-devices", action="store_true", help="print the devices and exit")
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name, help=module.HELP, description=module.__doc__, allow_abbrev=False
        )
        module.add_arguments(command)
        command.add_argument("-v", "--verbose", action="store_true", help="logs and tracebacks")
        command.set_defaults(run=module.run, usage_error=command.error)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 for runtime errors, 2 for usage errors, 130 after Ctrl-C."""
    parser = make_parser()
    argv = sys.argv[1:] if argv is None else list(argv)
    extra: list[str] = []
    if argv[:1] == ["serve"] and "--" in argv:
        at = argv.index("--")
        argv, extra = argv[:at], argv[at + 1 :]
    args = parser.parse_args(argv, argparse.Namespace(extra=extra))
    if args.list_devices:
        for name, description, _ in core.list_devices():
            print(f"{name}: {description}")
        return 0
    if not hasattr(args, "run"):
        parser.print_help()
        return 2
    if args.verbose:
        logging.basicConfig(level=logging.DEBUG, format="%(message)s", stream=sys.stderr)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    except (DFlash2Error, OSError, ValueError, MemoryError) as e:
        if args.verbose:
            traceback.print_exc()
        ui.error(str(e) or type(e).__name__, HINTS.get(type(e), ""))
        return 1

"""`dflash2 chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import sys

from dflash2.cli import options
from dflash2.cli.report import report
from dflash2.cli.ui import Ui
from dflash2.engine import Engine
from dflash2.errors import ContextFullError
from dflash2.types import SamplingParams

HELP = "talk with the model"

COMMANDS = """\
/help   this list
/reset  forget the conversation
/quit   leave, as Ctrl-D does
Ctrl-C  stop the answer"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompt")
    group.add_argument("-sys", "--system-prompt", metavar="TEXT", help="system message")
    options.add_model_options(parser)
    options.add_drafting_options(parser)
    options.add_sampling_options(parser)
    options.add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    ui = Ui(quiet=args.quiet, color=args.color)
    params = options.sampling_params(args)
    with options.load_engine(args, ui) as engine:
        conversation = Conversation(engine, params, ui, args.system_prompt)
        ui.note(f"{engine.description}; /help lists the commands")
        while converse(conversation):
            pass
        ui.note(report(engine.total_stats))
    return 0


def converse(conversation: Conversation) -> bool:
    """One line of the user. False at the end; Ctrl-C, whenever it comes, is not the end."""
    try:
        line = read_line()
        if line is None or line == "/quit":
            return False
        if line == "/help":
            print(COMMANDS, file=sys.stderr)
        elif line == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            print(f"unknown command {line.split()[0]}; try /help", file=sys.stderr)
        elif line:
            conversation.answer(line)
    except KeyboardInterrupt:
        print("\n(/quit or Ctrl-D leaves)", file=sys.stderr)
    return True


def read_line() -> str | None:
    """None at the end of the input."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.strip() if line else None
    try:
        return input("> ").strip()
    except EOFError:
        print(file=sys.stderr)
        return None


class Conversation:
    """Messages so far. What was answered before an interruption stays."""

    def __init__(self, engine: Engine, params: SamplingParams, ui: Ui, system: str | None) -> None:
        self._engine = engine
        self._params = params
        self._ui = ui
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self.reset()
        engine.tokenize_chat([{"role": "user", "content": ""}])  # no template: fail at once

    def reset(self) -> None:
        self._messages = list(self._system)

    def answer(self, text: str) -> None:
        asked = [*self._messages, {"role": "user", "content": text}]
        answer = ""
        try:
            for token in self._engine.chat(asked, self._params, stream=True):
                answer += token.text
                self._ui.token(token)
        except KeyboardInterrupt:
            pass
        except ContextFullError as e:
            print(f"error: {e}\nhint: /reset forgets the conversation", file=sys.stderr)
            return
        print(flush=True)
        if self._engine.finish_reason == "context":
            print("(the context is full; /reset forgets the conversation)", file=sys.stderr)
        self._messages = [*asked, {"role": "assistant", "content": answer}]

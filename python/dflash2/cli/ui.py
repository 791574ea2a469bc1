"""Terminal output: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from dflash2.types import Token

RED, GREEN, BOLD = "31", "32", "1"


class Ui:
    """quiet: only errors besides the answer. color: tint drafted text on a terminal."""

    def __init__(self, *, quiet: bool = False, color: bool = False) -> None:
        self.quiet = quiet
        self.color = color and allows_color(sys.stdout)

    def token(self, token: Token) -> None:
        """Writes a token's text as it is produced."""
        text = token.text
        if self.color and token.from_draft and text:
            text = paint(text, GREEN)
        sys.stdout.write(text)
        sys.stdout.flush()

    def note(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr)

    def warn(self, text: str) -> None:
        self.note(f"warning: {text}")


def error(text: str, hint: str = "") -> None:
    label = paint("error:", RED) if allows_color(sys.stderr) else "error:"
    print(f"{label} {text}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


def allows_color(stream: TextIO) -> bool:
    """https://no-color.org: any non-empty value of NO_COLOR turns colours off."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"

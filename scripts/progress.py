"""Runs a command whose output is long: one line of progress, the whole output in a log file.

    python scripts/progress.py build/x.log pip install -v something

On a terminal the line is rewritten in place; elsewhere one line is printed per tenth of the work.
When the command fails, the end of the log is printed and the exit status is the command's.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

STEP = re.compile(r"^\s*\[(\d+)/(\d+)\]")
TAIL = 40


def main(log: Path, command: list[str]) -> int:
    start = time.monotonic()
    tty = sys.stdout.isatty()
    lines: list[str] = []
    shown = 0
    with (
        log.open("w") as out,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            out.write(line)
            lines.append(line)
            step = STEP.match(line)
            if not step:
                continue
            n, total = int(step[1]), int(step[2])
            text = f"    [{n}/{total}] {time.monotonic() - start:.0f} s"
            if tty:
                print(f"\r{text}", end="", flush=True)
            elif n * 10 // total > shown:
                print(text, flush=True)
            shown = n * 10 // total
    if tty and shown:
        print()
    if child.returncode:
        print("".join(lines[-TAIL:]), end="", file=sys.stderr)
        print(f"error: {command[0]} failed; the whole output is in {log}", file=sys.stderr)
    return child.returncode


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))

#!/usr/bin/env python3
"""Train a DFlash 2 drafter for a target, on text that the target writes itself.

    python scripts/train_drafter.py train TARGET OUT --minutes 18
    python scripts/train_drafter.py evaluate TARGET CHECKPOINT
    python scripts/train_drafter.py ablate TARGET OUT --steps 768
    python scripts/train_drafter.py count TARGET head-counts.txt

TARGET is a GGUF file or a Hugging Face directory (llama, qwen2, qwen3). Needs torch (group
`reference` of pyproject.toml) and one GPU; tiny targets train on a CPU. A run that was
interrupted goes on when the same command is given again.
"""

from __future__ import annotations

import argparse
import sys

from training.commands import add_commands
from training.training_error import TrainingError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a DFlash 2 drafter.")
    add_commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    args = parser.parse_args(argv)
    try:
        args.run(args)
    except TrainingError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last save", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

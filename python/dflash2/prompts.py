"""Prompts of measurements: the built-in ones, and a user's file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash2.chat import Messages
from dflash2.engine import Engine
from dflash2.measure.traffic import Line, read_traffic


@dataclass(frozen=True, kw_only=True)
class LabelledPrompt:
    """text: continued as it is; messages: after the chat template. One of the two.

    label: the kind of work; "" for none.
    """

    label: str = ""
    text: str | None = None
    messages: Messages | None = None

    def tokens(self, engine: Engine) -> list[int]:
        if self.messages is not None:
            return engine.tokenize_chat(self.messages)
        return engine.tokenize(self.text or "")


def ask(label: str, question: str) -> LabelledPrompt:
    return LabelledPrompt(label=label, messages=({"role": "user", "content": question},))


def read_prompts(path: str | os.PathLike[str], by: str = "task") -> list[LabelledPrompt]:
    """A file of prompts, one a line.

    Plain text: each line is a question, put into the chat template. *.jsonl: traffic as
    `dflash2 measure` reads it, labelled by its field `by`; recorded answers are not used.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is malformed, or there is no prompt at all.
    """
    file = Path(path)
    found = _read_traffic(file, by) if file.suffix == ".jsonl" else _read_text(file)
    if not found:
        raise ValueError(f"{file}: expected at least one prompt, one a line, found none")
    return found


def _read_text(file: Path) -> list[LabelledPrompt]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as e:
        raise ValueError(f"{file}: expected UTF-8 text: {e}") from e
    return [ask("", line.strip()) for line in lines if line.strip()]


def _read_traffic(file: Path, by: str) -> list[LabelledPrompt]:
    found = []
    for line in read_traffic(file):
        assert isinstance(line, Line)  # bad ones are raised
        label = line.labels.get(by, "")
        if isinstance(line.prompt, str):
            found.append(LabelledPrompt(label=label, text=line.prompt))
        else:
            found.append(LabelledPrompt(label=label, messages=line.prompt))
    return found


def labels(prompts: Sequence[LabelledPrompt]) -> list[str]:
    """Each once, in the order of the prompts."""
    return list(dict.fromkeys(prompt.label for prompt in prompts))


# Short chat questions of the kinds a small model is asked. Keep them out of training data; numbers
# from different prompts do not compare.
QUESTIONS = {
    "explain": (
        "Explain in simple words why the sky is blue.",
        "What is the difference between weather and climate?",
        "How does a bicycle stay upright while it is moving?",
        "Why do we have leap years?",
        "Explain what a database index is to a new programmer.",
    ),
    "code": (
        "Write a Python function that returns the n-th Fibonacci number.",
        "Write a Python function that counts the vowels in a string.",
        "Show me a SQL query that lists the ten customers with the most orders.",
        "Write a shell command that finds all files larger than 100 MB.",
        "Write a JavaScript function that removes duplicates from an array.",
    ),
    "lists": (
        "List five things to pack for a weekend hike.",
        "Give me ten ideas for a birthday present for a gardener.",
        "List the planets of the solar system with one fact about each.",
        "Name six healthy breakfasts that take less than ten minutes.",
        "What are the steps to change a flat tyre on a car?",
    ),
    "arithmetic": (
        "A train travels 180 km in 2 hours. How far does it travel in 5 hours? Show your steps.",
        "I buy 3 notebooks at 4 dollars each and 2 pens at 1.50 dollars each. What do I pay?",
        "What is 15 percent of 240? Explain how you get there.",
        "If a recipe for 4 people needs 300 g of flour, how much is needed for 10 people?",
        "The sum of two numbers is 20 and their difference is 4. What are the numbers?",
    ),
    "rewrite": (
        "Rewrite this more politely: Send me the report now.",
        "Correct the grammar: He don't know where is the station.",
        "Summarise in one sentence: Bees visit flowers for nectar and carry pollen between them.",
        "Turn this into a list: we need eggs, milk, two loaves of bread and some apples.",
        "Translate into French: Good morning, I would like a cup of coffee, please.",
    ),
    "write": (
        "Write a short story about a lighthouse keeper who finds a message in a bottle.",
        "Write a short poem about the first snow of winter.",
        "Write an email to a colleague that moves our meeting from Monday to Wednesday.",
        "Write a product description for a wooden desk lamp.",
        "Tell me a short story about a robot that learns to paint.",
    ),
}

BUILT_IN = [ask(label, text) for label, texts in QUESTIONS.items() for text in texts]

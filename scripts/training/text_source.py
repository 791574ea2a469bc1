"""Waves from the user's own texts: lines of a text file, or JSONL with `text` or `messages`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch

from training.target import Target
from training.training_error import TrainingError
from training.vocabulary import Vocabulary
from training.wave import ASSISTANT, FORCED, USER, Wave, loops

KINDS = {"assistant": ASSISTANT, "user": USER}
MICRO_BATCH = 32  # rows that the target processes at a time


class TextSource:
    """Packs the texts, in random order, into rows of `length` tokens."""

    def __init__(
        self, target: Target, vocabulary: Vocabulary, path: Path, n_row: int, length: int
    ) -> None:
        self.target, self.n_row, self.length = target, n_row, length
        texts = list(_read(path, vocabulary))
        if sum(len(ids) for ids, _ in texts) < length:
            raise TrainingError(f"{path}: expected at least {length} tokens of text, found fewer")
        self.texts = texts

    @torch.no_grad()
    def write(self) -> Wave:
        device, need = self.target.device, self.n_row * self.length
        ids: list[int] = []
        kinds: list[int] = []
        while len(ids) < need:
            for i in torch.randperm(len(self.texts)).tolist():
                ids += self.texts[i][0]
                kinds += self.texts[i][1]
                if len(ids) >= need:
                    break
        shape = (self.n_row, self.length)
        tokens = torch.tensor(ids[:need], device=device).view(shape)
        marks = torch.tensor(kinds[:need], device=device).view(shape)
        pairs = [self.target.rows(part) for part in tokens.split(MICRO_BATCH)]
        features, hidden = (torch.cat(part) for part in zip(*pairs, strict=True))
        temperatures = torch.ones(self.n_row, device=device)
        return Wave(tokens, marks, loops(tokens), features, hidden, temperatures)


def _read(path: Path, vocabulary: Vocabulary) -> Iterator[tuple[list[int], list[int]]]:
    """Token ids and their kinds, text by text."""
    end = vocabulary.eog[:1]
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise TrainingError(f"{path}: expected a UTF-8 file of texts: {e}") from e
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if path.suffix != ".jsonl":
            ids = vocabulary.encode(line) + end
            yield ids, [ASSISTANT] * len(ids)
            continue
        try:
            item = json.loads(line)
            if "messages" in item:
                yield _chat(item["messages"], vocabulary)
            else:
                ids = vocabulary.encode(item["text"]) + end
                yield ids, [ASSISTANT] * len(ids)
        except (ValueError, KeyError, TypeError) as e:
            raise TrainingError(
                f"{path}:{number}: expected a JSON object with `text` or `messages`: {e!r}"
            ) from e


def _chat(messages: list[dict[str, str]], vocabulary: Vocabulary) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    kinds: list[int] = []
    rendered = ""
    for i, message in enumerate(messages):
        whole = vocabulary.render(messages[: i + 1])
        new = whole[len(rendered) :]
        rendered = whole
        opening, content, closing = new.partition(message["content"])
        # the end-of-turn token is written by the model too
        parts = ((opening, FORCED), (content, KINDS.get(message["role"], FORCED)))
        for text, kind in (*parts, (closing, parts[1][1])):
            encoded = vocabulary.encode(text)
            ids += encoded
            kinds += [kind] * len(encoded)
    return ids, kinds

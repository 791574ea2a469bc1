"""Measures one request: generates its answer if there is none, then replays it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import partial

from dflash2.engine import Engine
from dflash2.errors import ContextFullError
from dflash2.fingerprint import file_fingerprint
from dflash2.loader import open_models
from dflash2.measure.rounds import expected_rounds
from dflash2.measure.store import Record
from dflash2.measure.survival import Survival
from dflash2.measure.tally import TallyBook, context_range, parts
from dflash2.measure.traffic import Line
from dflash2.replay import read
from dflash2.types import SamplingParams

Job = tuple[str, Line]  # key of the record, and what to measure


@dataclass(frozen=True)
class Refusal:
    """Why a line cannot be measured. line: its number."""

    line: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Of a run; what can change its result is part of every record's key.

    Args:
        n_draft: tokens drafted per round; None: all that the drafter can.
        max_tokens: of a generated answer.
        temperature: of lines that say none.
        others: see `dflash2.load`.
    """

    target: str
    draft: str
    n_draft: int | None = None
    max_tokens: int = 256
    temperature: float = 0.0
    n_ctx: int = 4096
    n_batch: int = 512
    n_threads: int | None = None
    n_gpu_layers: int = 0
    draft_device: str | None = None

    def digest(self) -> str:
        """Raises OSError: a model cannot be read."""
        fields = dataclasses.asdict(self)
        for name in ("n_batch", "n_threads", "n_gpu_layers", "draft_device"):
            del fields[name]
        for name in ("target", "draft"):
            fields[name] = file_fingerprint(fields[name])
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


class Recorder:
    """Holds the models of a run. A record depends on its line alone, not on those before.

    Raises:
        DFlash2Error, OSError, ValueError, MemoryError: as `dflash2.load`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        target, drafter = open_models(
            settings.target,
            settings.draft,
            n_ctx=settings.n_ctx,
            n_batch=settings.n_batch,
            n_threads=settings.n_threads,
            n_gpu_layers=settings.n_gpu_layers,
            draft_device=settings.draft_device,
        )
        assert drafter is not None
        self._target = target
        self._drafter = drafter

    def record(self, job: Job) -> Record | Refusal:
        """A refusal, when something is wrong with the line itself."""
        key, line = job
        temperature = line.temperature
        if temperature is None:
            temperature = self._settings.temperature
        record = Record(key=key, line=line.number, labels=line.labels, temperature=temperature)
        try:
            return self._measure(record, line)
        except (ContextFullError, ValueError) as e:
            return Refusal(line.number, str(e))

    def _measure(self, record: Record, line: Line) -> Record:
        # A new engine has no memory of the request before: what is decoded together, and so how
        # it is rounded, is the same in whatever order requests run.
        n_draft = self._settings.n_draft
        if n_draft is None:
            n_draft = self._drafter.max_draft()
        engine = Engine(self._target, self._drafter, spec_draft_n_max=n_draft)
        prompt, answer = self._tokens(engine, line)
        if not answer:
            params = SamplingParams(
                temperature=record.temperature,
                max_tokens=self._settings.max_tokens,
                seed=int(record.key[:8], 16),
            )
            response = engine.generate(prompt, params)
            answer = list(response.tokens)
            record = dataclasses.replace(
                record,
                generated=response.text,
                num_drafts=response.stats.num_drafts,
                accepted_per_pos=response.stats.accepted_per_pos,
            )
        return self._replay(record, prompt, answer, engine.spec_draft_n_max)

    def _tokens(self, engine: Engine, line: Line) -> tuple[list[int], list[int]]:
        """Of the prompt and of the recorded answer, which is empty when there is none."""
        if isinstance(line.prompt, str):
            prompt = engine.tokenize(line.prompt)
        else:
            prompt = engine.tokenize_chat(line.prompt)
        if line.completion is None:
            return prompt, []
        answer = self._target.tokenize(line.completion, add_special=False, parse_special=True)
        return prompt, [*answer, self._target.eos] if line.whole else answer

    def _replay(self, record: Record, prompt: list[int], answer: list[int], n_draft: int) -> Record:
        piece = partial(self._target.piece, special=True)
        part = parts(map(piece, prompt), map(piece, answer))
        reading = read(
            self._target,
            [*prompt, *answer],
            self._drafter.target_layers(),
            start=len(prompt),
            window=self._drafter.context_window(),
            temperature=record.temperature,
        )
        survival = Survival(reading, self._drafter, n_draft)
        # A draft may end a text by itself; at a limit of tokens the target has the last word.
        n_most = len(answer) - (not self._target.is_eog(answer[-1]))
        book = TallyBook(n_draft)
        for start, chance, shares in expected_rounds(
            n_most, lambda start, n: survival.at(len(prompt) + start, n)
        ):
            context = context_range(len(prompt) + start)
            book.add((part[start + 1], context), chance, shares)
        return dataclasses.replace(
            record,
            n_prompt=len(prompt),
            n_answer=len(answer),
            n_likeliest=int((reading.argmax[:-1] == reading.tokens[len(prompt) + 1 :]).sum()),
            tallies=book.tallies(),
        )

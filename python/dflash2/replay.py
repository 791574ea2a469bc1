"""Teacher-forced drafts: what a drafter says at every place of a text that is already known.

    reading = read(target, tokens, drafter.target_layers(), start=n_prompt)
    for block in replay([reading], drafter, stride=4):
        n_accepted += block.survives.sum()

The target passes over a text once; any number of drafters can replay it. Nothing is generated.
Symbols in shapes: n_draft tokens drafted after an anchor, K candidates per token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dflash2._native import core

Ints: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float32]
Bools: TypeAlias = NDArray[np.bool_]

N_LOGITS = 32  # rows that can have logits in one decode, see target.h
P_FLOOR = (
    1e-6  # smaller probabilities of the target are not kept; they sum to K of these in overlap
)


@dataclass(frozen=True)
class Law:
    """The target's distribution after one token: ids in ascending order and their probabilities."""

    ids: Ints
    p: Floats

    def __call__(self, tokens: Ints) -> Floats:
        """Probabilities of tokens, shaped as they are; 0 where below P_FLOOR."""
        at = np.minimum(np.searchsorted(self.ids, tokens), len(self.ids) - 1)
        return np.where(self.ids[at] == tokens, self.p[at], np.float32(0))


@dataclass(frozen=True)
class Reading:
    """What the target makes of a text.

    Args:
        tokens: (n,).
        start: first anchor; earlier tokens are context only.
        argmax: (n - start,), the target's most likely token after tokens[start + i].
        features: (n - n_skipped, n_taps, n_embd), tapped at positions n_skipped and later.
        temperature: of the laws.
        laws: n - start of them, or none when the temperature is 0.
    """

    tokens: Ints
    start: int
    argmax: Ints
    features: Floats
    temperature: float
    laws: list[Law]

    @property
    def n_skipped(self) -> int:
        return len(self.tokens) - len(self.features)


def read(
    target: core.Target,
    tokens: Sequence[int],
    layers: Sequence[int],
    *,
    start: int = 1,
    window: int = 0,
    temperature: float = 0.0,
    seq: int = 0,
) -> Reading:
    """Passes over a text once, in sequence `seq` of the target, which forgets what it held.

    Args:
        layers: target layers whose input is tapped, as Drafter.target_layers() has them.
        start: first anchor: 1, or the number of prompt tokens to judge the answer only.
        window: features kept before `start`, as Drafter.context_window() has it; 0: all.
        temperature: keep the target's laws at this temperature; 0: its argmax only.

    Raises:
        ValueError: the text ends before `start`, or a token is outside the vocabulary.
        ContextFullError: the text does not fit into the target's context.
    """
    if not 0 <= start < len(tokens):
        raise ValueError(f"text: expected more than {start} tokens, got {len(tokens)}")
    target.set_taps(layers)
    target.truncate(0, seq=seq)
    keep_from = max(0, start - window) if window > 0 else 0
    argmax: list[int] = []
    laws: list[Law] = []
    features = []
    for begin, end in _chunks(start, len(tokens), target.n_batch):
        target.decode(tokens[begin:end], begin, seq=seq, all_logits=begin >= start)
        if end > keep_from:
            features.append(target.tapped()[max(0, keep_from - begin) :])
        if begin < start:
            continue
        for row in range(end - begin):
            logits = target.logits(row)
            argmax.append(int(logits.argmax()))
            if temperature > 0:
                laws.append(_law(logits, temperature))
    return Reading(
        tokens=np.array(tokens, np.int32),
        start=start,
        argmax=np.array(argmax, np.int32),
        features=np.concatenate(features),
        temperature=temperature,
        laws=laws,
    )


@dataclass(frozen=True)
class Block:
    """One draft and what became of the text there.

    Args:
        reading: index of the text.
        position: of the anchor.
        text: (n_draft,), the tokens after the anchor.
        argmax: (n_draft,), the target's most likely token at each of these places.
        laws: the target's law at each of these places; none at temperature 0.
        cand: (n_draft, K), in no order.
        score: (n_draft, K from, K to); position 0 reads from = 0 only.
        path: (n_draft,), the selector's choice at temperature 0.
        temperature: of the laws.
    """

    reading: int
    position: int
    text: Ints
    argmax: Ints
    laws: list[Law]
    cand: Ints
    score: Floats
    path: Ints
    temperature: float

    @cached_property
    def recalls(self) -> Bools:
        """(n_draft,): the text's token is among the candidates."""
        return np.asarray((self.cand == self.text[:, None]).any(axis=1))

    @cached_property
    def agrees(self) -> Bools:
        """(n_draft,): the selector chose the text's token, whatever came before."""
        return np.asarray(self.path == self.text)

    @cached_property
    def survives(self) -> Bools:
        """(n_draft,): the greedy rule accepts up to here if the text is the target's own."""
        return np.logical_and.accumulate(self.agrees)

    @property
    def accept_length(self) -> int:
        """Tokens of the round at temperature 0, the target's own one included."""
        return 1 + int(self.survives.sum())

    @cached_property
    def q(self) -> Floats:
        """(n_draft, K): the law of the sampled walk after the text's tokens.

        Rows are 0 where the walk cannot be: the text's previous token was no candidate.
        """
        temperature = self.temperature if self.temperature > 0 else 1.0
        q = np.zeros(self.cand.shape, np.float32)
        for i in range(len(q)):
            origin = np.flatnonzero(self.cand[i - 1] == self.text[i - 1]) if i > 0 else [0]
            if len(origin) == 0:
                continue
            score = np.where(
                np.isfinite(self.score[i, origin[0]]), self.score[i, origin[0]], -np.inf
            )
            if score.max() > -np.inf:
                weight = np.exp((score - score.max()) / temperature)
                q[i] = weight / weight.sum()
        return q

    @cached_property
    def q_text(self) -> Floats:
        """(n_draft,): the walk's probability of the text's token."""
        return np.asarray(np.where(self.cand == self.text[:, None], self.q, 0).sum(axis=1))

    @cached_property
    def overlap(self) -> Floats:
        """(n_draft,): sum min(p, q), the chance that a token drafted after the text is accepted."""
        rows = zip(self.laws, self.cand, self.q, strict=True)
        return np.array([np.minimum(law(cand), q).sum() for law, cand, q in rows], np.float32)

    @property
    def expected_survival(self) -> Floats:
        """(n_draft,): probability that the sampled round is accepted up to here.

        Unbiased over texts that the target sampled at this temperature: with x ~ p,
        P(m tokens are accepted) = E[prod over i < m of min(1, q(x_i) / p(x_i)) * overlap_m].
        """
        p = np.array([law(x) for law, x in zip(self.laws, self.text, strict=True)])
        ratio = np.minimum(1, self.q_text / np.maximum(p, P_FLOOR))
        reached = np.cumprod(np.concatenate([[1.0], ratio[:-1]]))
        return np.asarray(reached * self.overlap, np.float32)

    @property
    def expected_length(self) -> float:
        """Tokens of a sampled round, the residual or bonus token included."""
        return 1 + float(self.expected_survival.sum())


def replay(
    readings: Sequence[Reading],
    drafter: core.Drafter,
    *,
    stride: int = 1,
    width: int | None = None,
) -> Iterator[Block]:
    """Drafts after every stride-th token of each text, as many texts side by side as fit.

    Blocks that would reach past the end of their text are left out.

    Args:
        width: tokens per draft; None: all that the drafter can.

    Raises:
        ValueError: width is out of range, or the features are not those that the drafter taps.
        ContextFullError: a text does not fit into the drafter's context.
    """
    n_draft = drafter.max_draft() if width is None else width
    waiting = iter(range(len(readings)))
    lanes: dict[int, _Lane] = {}
    free = list(range(drafter.n_seq()))
    while True:
        while free and (index := next(waiting, None)) is not None:
            lane = _Lane(index, readings[index], readings[index].start)
            if lane.has_block(n_draft):
                seq = free.pop(0)
                drafter.truncate(seq, 0)
                lanes[seq] = lane
        if not lanes:
            return
        for seq, lane in lanes.items():
            drafter.inject(seq, *lane.rows())
        jobs = [(seq, lane.anchor, lane.position) for seq, lane in lanes.items()]
        for (seq, _, _), lattice in zip(jobs, drafter.draft(jobs, n_draft), strict=True):
            yield lanes[seq].block(lattice, n_draft)
            lanes[seq].position += stride
            if not lanes[seq].has_block(n_draft):
                del lanes[seq]
                free.append(seq)


@dataclass
class _Lane:
    """A text under replay; position: of the next anchor; n_done: positions already injected."""

    index: int
    reading: Reading
    position: int
    n_done: int = -1

    @property
    def anchor(self) -> int:
        return int(self.reading.tokens[self.position])

    def has_block(self, n_draft: int) -> bool:
        return self.position + n_draft < len(self.reading.tokens)

    def rows(self) -> tuple[Floats, int]:
        """Features since the last anchor, and the position of the first one."""
        r = self.reading
        first = r.n_skipped if self.n_done < 0 else self.n_done
        self.n_done = self.position
        return r.features[first - r.n_skipped : self.position - r.n_skipped], first

    def block(self, lattice: core.Lattice, n_draft: int) -> Block:
        r, at = self.reading, self.position - self.reading.start
        return Block(
            reading=self.index,
            position=self.position,
            text=r.tokens[self.position + 1 : self.position + 1 + n_draft],
            argmax=r.argmax[at : at + n_draft],
            laws=r.laws[at : at + n_draft],
            cand=lattice.cand,
            score=lattice.score,
            path=np.array(core.walk_greedy(lattice)[0], np.int32),
            temperature=r.temperature,
        )


def _chunks(start: int, end: int, n_batch: int) -> Iterator[tuple[int, int]]:
    """Batches of context without logits, then of rows with them."""
    for begin in range(0, start, n_batch):
        yield begin, min(begin + n_batch, start)
    for begin in range(start, end, N_LOGITS):
        yield begin, min(begin + N_LOGITS, end)


def _law(logits: Floats, temperature: float) -> Law:
    p = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    p /= p.sum()
    ids = np.flatnonzero(p >= P_FLOOR).astype(np.int32)
    return Law(ids, p[ids].astype(np.float32))

"""The law of a target's continuations, written out: what sampled output is tested against.

llama.cpp's samplers are implemented here once more, in float64, so that the two can disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from dflash2._native import core
from make_tiny_models import make_tiny_target
from numpy.typing import NDArray
from scipy.stats import chi2

Floats = NDArray[np.float64]
Law = dict[tuple[int, ...], float]

N_VOCAB = 24
PROMPT = [1, 9, 14, 8]
N_TOKENS = 3
GRAMMAR = 'root ::= [ae]+ "t" [oin]* | "o" [a-t]+'

# Sampling options beside the seed.
CHAINS: dict[str, dict[str, Any]] = {
    "none": {"temperature": 1.0},
    "temperature": {"temperature": 0.7},
    "top_k": {"temperature": 1.0, "top_k": 5},
    "top_p": {"temperature": 1.3, "top_p": 0.8},
    "min_p": {"temperature": 1.0, "min_p": 0.1},
    "logit_bias, top_p": {
        "temperature": 1.0,
        "logit_bias": {9: 1.5, 10: float("-inf")},
        "top_p": 0.8,
        "min_p": 0.08,
    },
    "typical_p": {"temperature": 1.0, "typical_p": 0.7},
    "all cuts": {"temperature": 0.9, "top_k": 12, "typical_p": 0.95, "top_p": 0.9, "min_p": 0.05},
    "penalties": {
        "temperature": 1.0,
        "repeat_penalty": 1.4,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.2,
        "repeat_last_n": 3,
    },
    "penalties, top_k": {
        "temperature": 1.0,
        "repeat_penalty": 2.0,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.2,
        "repeat_last_n": 3,
        "top_k": 6,
    },
    "logit_bias": {"temperature": 1.0, "logit_bias": {9: 1.5, 2: -1.0, 10: float("-inf")}},
    "grammar": {"temperature": 1.0, "grammar": GRAMMAR},
    "logit_bias, typical_p": {
        "temperature": 1.0,
        "logit_bias": {6: float("-inf"), 7: float("-inf")},
        "typical_p": 0.6,
    },
    "grammar, typical_p": {"temperature": 1.0, "grammar": GRAMMAR, "typical_p": 0.8},
}


def grammar_allows(text: str, end: bool) -> bool:
    """Whether GRAMMAR has a text that begins with `text`, or with `end` is `text`."""
    if text.startswith("o"):
        rest = text[1:]
        return all("a" <= c <= "t" for c in rest) and (bool(rest) or not end)
    head, t, tail = text.partition("t")
    if head.strip("ae") or (not head and (text or end)):
        return False
    return not tail.strip("oin") and (bool(t) or not end)


def law_target(path: Path | str) -> Path:
    """A target whose vocabulary is small enough to enumerate."""
    return make_tiny_target(
        path, n_layer=1, n_embd=32, n_head_kv=1, n_ff=32, n_vocab=N_VOCAB, sharpness=1.5, n_ctx=256
    )


def next_law(
    logits: NDArray[np.float32],
    tokens: Sequence[int],
    params: dict[str, Any],
    excluded: Iterable[int] = (),
) -> Floats:
    """The law after the sampler chain, (n_vocab,). tokens: the text so far, the prompt included."""
    x = logits.astype(np.float64)
    for token, bias in params.get("logit_bias", {}).items():
        x[token] += bias
    x[list(excluded)] = -np.inf
    last_n = params.get("repeat_last_n", 64)
    for token, count in Counter(tokens[-last_n:]).items():
        repeat = params.get("repeat_penalty", 1.0)
        x[token] = x[token] * repeat if x[token] <= 0 else x[token] / repeat
        x[token] -= count * params.get("frequency_penalty", 0.0)
        x[token] -= params.get("presence_penalty", 0.0)

    def softmax() -> Floats:
        p: Floats = np.exp(x - x.max())
        p /= p.sum()
        return p

    def keep(ids: NDArray[np.intp]) -> None:
        drop = np.ones(len(x), bool)
        drop[ids] = False
        x[drop] = -np.inf

    if params.get("top_k", 0):
        keep(np.argsort(-x)[: params["top_k"]])
    if params.get("typical_p", 1.0) < 1:
        p = softmax()
        information = np.full(len(p), np.inf)
        information[p > 0] = -np.log(p[p > 0])
        entropy = float((p[p > 0] * information[p > 0]).sum())
        order = np.argsort(np.abs(information - entropy))
        n = int((np.cumsum(p[order]) <= params["typical_p"]).sum()) + 1
        keep(order[:n])
    if params.get("top_p", 1.0) < 1:
        p = softmax()
        order = np.argsort(-p)
        keep(order[: int((np.cumsum(p[order]) < params["top_p"]).sum()) + 1])
    if params.get("min_p", 0.0) > 0:
        p = softmax()
        keep(np.flatnonzero(p >= params["min_p"] * p.max()))
    x /= params["temperature"]
    return softmax()


class ExactLaws:
    """Laws along every path from PROMPT, for one chain."""

    def __init__(self, target: core.Target, params: dict[str, Any]) -> None:
        self.target = target
        self.params = params
        self.known: dict[tuple[int, ...], Floats] = {}
        self.text = [target.piece(token).decode() for token in range(target.n_vocab)]

    def after(self, path: tuple[int, ...]) -> Floats:
        """The next token's law after PROMPT and a path, (n_vocab,)."""
        if path not in self.known:
            tokens = [*PROMPT, *path]
            self.target.truncate(0)
            self.target.decode(tokens, 0)
            logits = self.target.logits(len(tokens) - 1)
            self.known[path] = next_law(logits, tokens, self.params, self._excluded(path))
        return self.known[path]

    def continuations(self, n: int = N_TOKENS) -> Law:
        """Probability of every path of n tokens, or that ends before."""
        law: Law = {}
        open_paths: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
        while open_paths:
            path, p = open_paths.pop()
            if len(path) == n or (path and self.target.is_eog(path[-1])):
                law[path] = p
                continue
            after = self.after(path)
            open_paths += [((*path, int(i)), p * float(after[i])) for i in np.flatnonzero(after)]
        return law

    def _excluded(self, path: tuple[int, ...]) -> list[int]:
        if "grammar" not in self.params:
            return []
        text = "".join(self.text[token] for token in path)
        out = []
        for token, piece in enumerate(self.text):
            if self.target.is_eog(token):
                allowed = grammar_allows(text, end=True)
            else:
                allowed = bool(piece) and grammar_allows(text + piece, end=False)
            if not allowed:
                out.append(token)
        return out


def p_value(counts: Counter[tuple[int, ...]], law: Law) -> float:
    """Chi-square of the counts against the law; 0 for an outcome outside it.

    Outcomes that are expected fewer than 5 times are taken together.
    """
    n = sum(counts.values())
    if set(counts) - set(law):
        return 0.0
    statistic, cells, rest_seen, rest_expected = 0.0, 0, 0, 0.0
    for outcome, p in law.items():
        if n * p < 5:
            rest_seen += counts[outcome]
            rest_expected += n * p
        else:
            statistic += (counts[outcome] - n * p) ** 2 / (n * p)
            cells += 1
    if rest_expected >= 5:
        statistic += (rest_seen - rest_expected) ** 2 / rest_expected
        cells += 1
    return float(chi2.sf(statistic, cells - 1))


def count_continuations(
    engine: core.Engine,
    make_request: Callable[[int], core.Request],
    n: int,
    n_tokens: int = N_TOKENS,
) -> Counter[tuple[int, ...]]:
    """First tokens of n requests, make_request(0) to make_request(n - 1)."""
    counts: Counter[tuple[int, ...]] = Counter()
    running: dict[int, list[int]] = {}
    submitted = 0
    while submitted < n or not engine.idle:
        while submitted < n and len(running) < 64:
            running[engine.submit(make_request(submitted))] = []
            submitted += 1
        for progress in engine.step():
            running[progress.id] += [token.id for token in progress.tokens]
            if progress.finish_reason is not None:
                counts[tuple(running.pop(progress.id)[:n_tokens])] += 1
    return counts

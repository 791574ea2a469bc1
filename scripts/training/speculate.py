"""The exact speculative loop over many prompts at once, as an engine runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from training.drafter import Drafter
from training.target import RaggedCache, Target, write
from training.transformer import bias_of
from training.wave import loops


@dataclass(frozen=True)
class Speculation:
    """Counters of each prompt, on the CPU."""

    outputs: list[list[int]]  # without the prompt
    rounds: torch.Tensor  # (prompt,)
    produced: torch.Tensor  # (prompt,): tokens of these rounds; the first token comes before them
    survived: torch.Tensor  # (prompt, k): rounds that kept position k = 1..
    looped: torch.Tensor  # (prompt,): the output repeats itself verbatim


@torch.no_grad()
def speculate(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    temperature: float,
    max_tokens: int,
    eog: Sequence[int],
    scales: Sequence[float] = (1.0,),
) -> list[Speculation]:
    """Greedy at temperature 0; else the sampled walk with rejection against its own probabilities.
    A round that meets an end token or max_tokens counts with what it produced.

    scales: multiples of the selector's pair scores, 0 for none; all prompts run with each of them,
    at once. Returns one result for each.
    """
    loop = _Loop(target, drafter, prompts, temperature, max_tokens, eog, scales)
    while not bool(loop.done.all()):
        loop.round()
    return loop.results(len(scales))


class _Loop:
    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        prompts: Sequence[Sequence[int]],
        temperature: float,
        max_tokens: int,
        eog: Sequence[int],
        scales: Sequence[float],
    ) -> None:
        self.target, self.drafter, self.temperature = target, drafter, temperature
        config, device = drafter.config, target.device
        self.scales = torch.tensor(scales, device=device).repeat_interleave(len(prompts))[:, None]
        prompts = list(prompts) * len(scales)
        self.size = config.block_size
        n, longest = len(prompts), max(map(len, prompts))
        self.lengths = torch.tensor([len(p) for p in prompts], device=device)
        self.length = longest + max_tokens + 2 * self.size
        self.tokens = torch.zeros(n, self.length, dtype=torch.long, device=device)
        for i, prompt in enumerate(prompts):
            self.tokens[i, : len(prompt)] = torch.tensor(prompt, device=device)
        self.eog = torch.tensor(eog, device=device)
        self.end = self.lengths + max_tokens
        self.cache = RaggedCache(target, n, self.length)
        shape = (config.n_layer, n, config.n_head_kv, self.length, config.head_dim)
        self.past_k = torch.zeros(shape, device=device, dtype=target.dtype)
        self.past_v = torch.zeros_like(self.past_k)

        positions = torch.arange(longest, device=device).expand(n, -1)
        hidden = self._process(self.tokens[:, :longest], positions)
        last = hidden[torch.arange(n, device=device), self.lengths - 1]
        first = self._draw(self.target.logits(last))
        self.anchor = self.lengths.clone()  # the position of the last token, not yet processed
        self._put(self.anchor, first)
        self.done = torch.isin(first, self.eog)
        self.rounds = torch.zeros_like(self.lengths)
        self.produced = torch.zeros_like(self.lengths)
        self.survived = torch.zeros(n, self.size - 1, dtype=torch.long, device=device)

    def round(self) -> None:
        positions = self.anchor[:, None] + torch.arange(self.size, device=self.anchor.device)
        anchor = self.tokens.gather(1, self.anchor[:, None])[:, 0]
        draft, candidates, q = self._draft(anchor, positions)
        hidden = self._process(torch.cat([anchor[:, None], draft], dim=1), positions)
        logits = self.target.logits(hidden.flatten(0, 1)).view(*hidden.shape[:2], -1)
        n_accept, following = self._verify(draft, candidates, q, logits)

        kept = torch.arange(self.size, device=draft.device)
        new = torch.cat([draft, draft[:, :1]], dim=1).scatter(1, n_accept[:, None], following)
        room = (self.end - 1 - self.anchor).clamp(min=1)
        n_new = torch.minimum(n_accept + 1, room)
        ended = torch.isin(new, self.eog) & (kept < n_new[:, None])
        stops = ended.any(1)
        n_new = torch.where(stops, ended.int().argmax(1) + 1, n_new)
        live = ~self.done
        old = self.tokens.gather(1, positions + 1)
        write_ = (kept < n_new[:, None]) & live[:, None]
        self.tokens.scatter_(1, positions + 1, torch.where(write_, new, old))
        self.rounds += live
        self.produced += n_new * live
        self.survived += (kept[1:] <= n_accept[:, None]) & live[:, None]
        self.anchor = self.anchor + n_new * live
        self.done = self.done | stops | (self.anchor >= self.end - 1)

    def results(self, n_scale: int) -> list[Speculation]:
        outputs, looped = [], []
        for row, start, end in zip(
            self.tokens.tolist(), self.lengths.tolist(), self.anchor.tolist(), strict=True
        ):
            outputs.append(row[start : end + 1])
            looped.append(bool(loops(torch.tensor([outputs[-1]])).any()))
        counters = (self.rounds, self.produced, self.survived, torch.tensor(looped))
        n = len(outputs) // n_scale
        parts = zip(*(c.cpu().split(n) for c in counters), strict=True)
        return [Speculation(outputs[i * n : (i + 1) * n], *part) for i, part in enumerate(parts)]

    def _put(self, positions: torch.Tensor, tokens: torch.Tensor) -> None:
        self.tokens.scatter_(1, positions[:, None], tokens[:, None])

    def _process(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The target's rows; their features go to the drafter."""
        features, hidden = self.target.run(ids, positions, self.cache.at(positions))
        for i, (k, v) in enumerate(self.drafter.context(features, positions)):
            write(self.past_k[i], positions, k)
            write(self.past_v[i], positions, v)
        return hidden

    def _draft(
        self, anchor: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Drafted tokens (prompt, k), candidates and their probabilities (prompt, k, top_k)."""
        drafter, config = self.drafter, self.drafter.config
        at = torch.arange(self.length, device=anchor.device)
        past = (at < self.anchor[:, None, None]) & (positions[..., None] - at < config.window)
        own = torch.ones(*positions.shape, self.size, dtype=torch.bool, device=anchor.device)
        bias = bias_of(
            torch.cat([past, own], dim=2), config.n_head // config.n_head_kv, self.past_k.dtype
        )
        x = F.embedding(drafter.block_ids(anchor), self.target.embed)
        past_rows = list(zip(self.past_k, self.past_v, strict=True))
        hidden = drafter(x, positions, past_rows, bias)[:, 1:]
        logits = self.target.logits(hidden.flatten(0, 1)).view(*hidden.shape[:2], -1)
        unary, candidates = logits.topk(config.top_k, dim=-1)
        previous, path, rows = anchor, [], []
        for k in range(self.size - 1):
            pair = drafter.candidate_selector(hidden[:, k], previous, candidates[:, k])
            scores = unary[:, k] + self.scales * pair
            if self.temperature > 0:
                q = torch.softmax(scores / self.temperature, dim=-1)
                pick = torch.multinomial(q, 1)
            else:
                q, pick = scores, scores.argmax(-1, keepdim=True)
            previous = candidates[:, k].gather(1, pick)[:, 0]
            path.append(previous)
            rows.append(q)
        return torch.stack(path, dim=1), candidates, torch.stack(rows, dim=1)

    def _verify(
        self, draft: torch.Tensor, candidates: torch.Tensor, q: torch.Tensor, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Accepted tokens (prompt,) and the token after them (prompt, 1)."""
        if self.temperature == 0:
            best = logits.argmax(-1)
            n_accept = (draft == best[:, :-1]).int().cumprod(1).sum(1)
            return n_accept, best.gather(1, n_accept[:, None])
        p = torch.softmax(logits / self.temperature, dim=-1)
        p_draft = p[:, :-1].gather(2, draft[..., None])[..., 0]
        q_draft = (q * (candidates == draft[..., None])).sum(-1)
        uniform = torch.rand_like(q_draft)
        n_accept = (uniform * q_draft < p_draft).int().cumprod(1).sum(1)
        rest = p.gather(1, n_accept[:, None, None].expand(-1, 1, p.shape[2]))[:, 0]
        at = n_accept.clamp(max=self.size - 2)[:, None, None].expand(-1, 1, q.shape[2])
        taken = q.gather(1, at)[:, 0] * (n_accept < self.size - 1)[:, None]
        residual = rest.scatter_add(1, candidates.gather(1, at)[:, 0], -taken).clamp_(min=0)
        empty = residual.sum(1, keepdim=True) <= 0
        return n_accept, torch.multinomial(torch.where(empty, rest, residual), 1)

    def _draw(self, logits: torch.Tensor) -> torch.Tensor:
        if self.temperature == 0:
            return logits.argmax(-1)
        return torch.multinomial(torch.softmax(logits / self.temperature, dim=-1), 1)[:, 0]

"""The loss against the label's distribution: the written token, the target's law, or a mix."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from training.drafter import Selector

N_GROUP = 64  # columns whose maximum is taken first when the best are sought
CHUNK = 8192  # rows at most whose logits are held at a time


@dataclass(frozen=True)
class HeadOutput:
    """Of n rows. candidates (n, top_k + 1): the drafter's best, best first, then the label.
    scores: the drafter's logits of them, with -inf for a label that is among the best. target:
    the target's."""

    losses: torch.Tensor  # (n,), carry the gradient
    hard: torch.Tensor  # (n,), against the written token
    overlap: torch.Tensor  # (n,), sum of min(label's distribution, drafter's)
    candidates: torch.Tensor
    scores: torch.Tensor
    target: torch.Tensor


def head_loss(
    hidden: torch.Tensor,
    target_hidden: torch.Tensor,
    head: torch.Tensor,
    labels: torch.Tensor,
    soft: torch.Tensor,
    top_k: int,
) -> HeadOutput:
    """hidden, target_hidden (n, n_embd); labels (n,); soft (n,): the target's distribution's share
    of the label's, the rest being on the written token."""
    return HeadOutput(*_Head.apply(hidden, target_hidden, head, labels, soft, top_k))


class _Head(torch.autograd.Function):
    """The head is frozen, so the gradient of the hidden rows is known in the forward pass, and no
    logits need to be kept."""

    @staticmethod
    def forward(ctx, hidden, target_hidden, head, labels, soft, top_k):  # type: ignore[no-untyped-def]
        gradient = torch.empty_like(hidden)
        parts = []
        chunk = _compiled_chunk if hidden.is_cuda else _chunk
        for rows in torch.arange(len(hidden)).chunk(-(-len(hidden) // CHUNK)):
            rows = slice(int(rows[0]), int(rows[-1]) + 1)
            z, z_target = hidden[rows] @ head.T, target_hidden[rows] @ head.T
            label = labels[rows]
            *numbers, d_logits = chunk(z, z_target, label, soft[rows])
            gradient[rows] = d_logits @ head
            best = best_columns(z, top_k)
            scores = z.gather(1, best).float()
            known = (best == label[:, None]).any(1, keepdim=True)
            own = z.gather(1, label[:, None]).float().masked_fill(known, float("-inf"))
            best = torch.cat([best, label[:, None]], dim=1)
            scores = torch.cat([scores, own], dim=1)
            parts.append((*numbers, best, scores, z_target.gather(1, best).float()))
        ctx.save_for_backward(gradient)
        outputs = [torch.cat(part) for part in zip(*parts, strict=True)]
        ctx.mark_non_differentiable(*outputs[1:])
        return tuple(outputs)

    @staticmethod
    def backward(ctx, d_losses, *_):  # type: ignore[no-untyped-def]
        (gradient,) = ctx.saved_tensors
        return gradient * d_losses[:, None].to(gradient.dtype), None, None, None, None, None


def _chunk(
    z: torch.Tensor, z_target: torch.Tensor, label: torch.Tensor, soft: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cross-entropies against the label's distribution and the written token, overlaps, and the
    gradient of the logits."""
    log_q = torch.log_softmax(z.float(), dim=-1)
    q = log_q.exp()
    written = torch.arange(z.shape[1], device=z.device) == label[:, None]
    truth = soft[:, None] * torch.softmax(z_target.float(), dim=-1) + (
        (1 - soft)[:, None] * written
    )
    losses = -(truth * log_q).sum(-1)
    hard = -log_q.gather(1, label[:, None])[:, 0]
    overlap = torch.minimum(truth, q).sum(-1)
    return losses, hard, overlap, (q - truth).to(z.dtype)


def _maxima(z: torch.Tensor) -> torch.Tensor:
    return z.view(len(z), -1, N_GROUP).amax(-1)


_compiled_chunk = torch.compile(_chunk, dynamic=False)
_compiled_maxima = torch.compile(_maxima, dynamic=False)


def best_columns(z: torch.Tensor, k: int) -> torch.Tensor:
    """(n, k) indices of each row's k largest, best first. A row's best are in the k groups of
    columns with the largest maxima, which makes this several times faster than topk."""
    n, width = z.shape
    if width % N_GROUP or width // N_GROUP < k:
        return z.topk(k, dim=-1).indices
    maxima = (_compiled_maxima if z.is_cuda else _maxima)(z)
    groups = maxima.topk(k, dim=-1).indices
    inside = groups[..., None] * N_GROUP + torch.arange(N_GROUP, device=z.device)
    inside = inside.view(n, -1)
    return inside.gather(1, z.gather(1, inside).topk(k, dim=-1).indices)


def selector_loss(
    selector: Selector,
    hidden: torch.Tensor,
    previous: torch.Tensor,
    out: HeadOutput,
    soft: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses (n,) over the candidates, given the true previous token, and the picks (n,)."""
    scores = out.scores + selector(hidden, previous, out.candidates)
    label_at = (out.candidates == out.candidates[:, -1:]).int().argmax(1)  # the first that equals
    log_q = torch.log_softmax(scores, dim=-1)
    p = torch.softmax(out.target.masked_fill(torch.isneginf(out.scores), float("-inf")), dim=-1)
    hard = -log_q.gather(1, label_at[:, None])[:, 0]
    cross = -(p * log_q.masked_fill(torch.isneginf(out.scores), 0.0)).sum(-1)
    with torch.no_grad():
        picks = out.candidates.gather(1, scores[:, :-1].argmax(1, keepdim=True))[:, 0]
    return (1 - soft) * hard + soft * cross, picks

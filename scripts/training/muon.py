"""Muon: momentum whose matrices are made orthogonal before each step."""

from __future__ import annotations

from collections import defaultdict

import torch

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # the published quintic
N_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """For matrices only. Those of equal shape are stepped as one batch. lr is a tensor, so that a
    captured step follows the schedule."""

    def __init__(
        self, params: list[torch.nn.Parameter], lr: torch.Tensor, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[torch.nn.Parameter]] = defaultdict(list)
            for p in group["params"]:
                shapes[p.shape].append(p)
            for params in shapes.values():
                self._step_batch(params, group["lr"], group["momentum"])

    def _step_batch(
        self, params: list[torch.nn.Parameter], lr: torch.Tensor, momentum: float
    ) -> None:
        gradients = [p.grad for p in params]
        for p in params:
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        buffers = [self.state[p]["momentum"] for p in params]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        ahead = torch._foreach_lerp(gradients, buffers, momentum)  # Nesterov
        update = orthogonalize(torch.stack(ahead))
        rows, columns = params[0].shape
        update = update.to(params[0].dtype) * (lr * max(1.0, rows / columns) ** 0.5)
        torch._foreach_sub_(params, list(update.unbind()))


def orthogonalize(matrices: torch.Tensor) -> torch.Tensor:
    """(n, rows, columns) with singular values brought near 1."""
    a, b, c = NEWTON_SCHULZ
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(N_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x

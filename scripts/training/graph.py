"""CUDA graphs: thousands of small kernels launched as one."""

from __future__ import annotations

from collections.abc import Callable

import torch

N_WARM_UP = 3  # calls that compile kernels and choose algorithms before the capture


def captured(
    step: Callable[[], None], prepare: Callable[[], None] = lambda: None
) -> Callable[[], None]:
    """`step` as a CUDA graph; it works on tensors that stay in place and never asks for a value.
    The warm-up calls it, each time after `prepare`."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(N_WARM_UP):
            prepare()
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay

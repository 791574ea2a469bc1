"""What a pair takes is known before anything is allocated, and too little is an error then."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import dflash2
import pytest
from dflash2 import SamplingParams
from dflash2._native import core
from dflash2.loader import plan_memory
from make_tiny_models import make_tiny_pair
from soak import SIZES

N_CTX = 512
N_SEQ = 2


@pytest.fixture(scope="module", params=[False, True], ids=["llama", "hybrid"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """With sliding and full layers in the drafter."""
    folder = tmp_path_factory.mktemp("memory")
    return list(make_tiny_pair(folder, hybrid=request.param, **SIZES))


@pytest.fixture
def device(pytestconfig: pytest.Config) -> str:
    """Of whole models."""
    return str(pytestconfig.getoption("--device") or "CPU")


def by_purpose(uses: list[core.MemoryUse]) -> dict[tuple[str, str], int]:
    return {(use.what, use.device): use.bytes for use in uses}


def open_pair(pair: list[Path], *, plan_only: bool) -> tuple[core.Target, core.GraphDrafter]:
    target = core.Target(
        str(pair[0]), n_ctx=N_CTX, n_seq=N_SEQ, n_rollback=7, n_threads=1, plan_only=plan_only
    )
    model = core.DraftModel(str(pair[1]), plan_only=plan_only)
    return target, core.GraphDrafter(model, target)


def test_the_plan_of_a_target_is_what_it_allocates(pair: list[Path], device: str) -> None:
    planned, real = (open_pair(pair, plan_only=plan)[0] for plan in (True, False))
    assert by_purpose(planned.memory) == by_purpose(real.memory)
    for what in ("target weights", "target K/V", "target compute"):
        assert by_purpose(real.memory)[what, device] > 0


def test_the_plan_of_a_drafter_is_what_it_allocates(pair: list[Path], device: str) -> None:
    (_, planned), (target, real) = (open_pair(pair, plan_only=plan) for plan in (True, False))
    plan, taken = by_purpose(planned.memory), by_purpose(real.memory)
    graphs = ("draft graphs", device)  # on a GPU some are on the CPU too
    bounds = {use: plan.pop(use) for use in list(plan) if use[0] == graphs[0]}
    bound = bounds[graphs]
    for use in bounds:
        assert 0 < taken.pop(use) < bounds[use]
    assert taken == plan
    assert taken["draft K/V", device] == real.cache_bytes

    # Whatever runs later stays inside it: every width, one and several sequences, long and short.
    engine = dflash2.Engine(target, real)
    prompts = [[6 + (7 * i + k) % 500 for i in range(n)] for k, n in enumerate((3, 200, 400))]
    for width in (1, 2, 3, 4, 5, 6, 7, None):
        engine.generate(prompts, SamplingParams(max_tokens=12), spec_draft_n_max=width)
    assert real.graphs_built > 12
    assert bound / 4 < by_purpose(real.memory)[graphs] <= bound
    assert by_purpose(real.memory)["draft K/V", device] == plan["draft K/V", device]
    whole = by_purpose(plan_memory(*pair, n_ctx=N_CTX, n_parallel=N_SEQ))
    for use in target.memory:  # with the rows and the room that the drafter's taps need
        assert use.bytes <= whole[use.what, use.device]
    assert by_purpose(target.memory)["target rows", "CPU"] == whole["target rows", "CPU"]


def test_too_little_memory_is_an_error_that_names_what_needs_it(
    pair: list[Path], device: str
) -> None:
    plan = plan_memory(*pair, n_ctx=N_CTX)
    needed: Counter[str] = Counter()
    for use in plan:
        needed[use.device] += 0 if use.mapped else use.bytes
    core.require_memory(plan, free=lambda name: needed[name])
    core.require_memory(plan, free=lambda name: 0)  # a device that does not say
    with pytest.raises(MemoryError) as raised:
        core.require_memory(plan, free=lambda name: needed[name] - (name == device))
    message = str(raised.value)
    assert "\n" not in message
    for part in (device, "target K/V", "draft K/V", "draft graphs", "free", "n_ctx", "n_parallel"):
        assert part in message
    mapped = any(use.mapped for use in plan if (use.what, use.device) == ("target weights", device))
    assert ("target weights" in message) != mapped, "mapped pages are no need"


def test_loading_refuses_before_it_allocates(
    pair: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    planned = core.Target

    def target(*args: Any, plan_only: bool, **options: Any) -> core.Target:
        opened.append(plan_only)
        return planned(*args, plan_only=plan_only, **options)

    def require(uses: list[core.MemoryUse]) -> None:
        raise MemoryError(f"{len(uses)} uses")

    monkeypatch.setattr(core, "Target", target)
    monkeypatch.setattr(core, "require_memory", require)
    with pytest.raises(MemoryError, match=r"[0-9]+ uses"):
        dflash2.load(*pair, n_ctx=N_CTX)
    assert opened == [True]


def test_a_longer_context_takes_more_and_a_ring_does_not(tmp_path: Path, device: str) -> None:
    files = make_tiny_pair(tmp_path, sliding_window=64, n_ctx=8192, **SIZES)
    near, far = (by_purpose(plan_memory(*files, n_ctx=n)) for n in (1024, 8192))
    assert far["target K/V", device] == 8 * near["target K/V", device]
    assert far["draft K/V", device] == near["draft K/V", device]

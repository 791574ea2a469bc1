"""From files to an engine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from dflash2._native import core, drain_log
from dflash2.engine import Engine
from dflash2.pairing import DraftFacts, TargetFacts, check_pair
from dflash2.types import AcceptRule

if TYPE_CHECKING:
    from typing_extensions import Unpack

StrPath = str | os.PathLike[str]


class ModelOptions(TypedDict, total=False):
    """Arguments of `load` that are not the engine's."""

    n_ctx: int
    n_parallel: int
    n_batch: int
    n_threads: int | None
    n_gpu_layers: int
    draft_device: str | None


@dataclass(frozen=True, kw_only=True)
class _Options:
    n_ctx: int = 4096
    n_parallel: int = 1
    n_batch: int = 512
    n_threads: int | None = None
    n_gpu_layers: int = 0
    draft_device: str | None = None

    def __post_init__(self) -> None:
        _require("n_ctx", self.n_ctx, 0)
        _require("n_parallel", self.n_parallel, 1)
        _require("n_batch", self.n_batch, 1)
        _require("n_threads", 1 if self.n_threads is None else self.n_threads, 1)
        _require("n_gpu_layers", self.n_gpu_layers, -1)


def load(
    target: StrPath,
    draft: StrPath | None = None,
    *,
    n_ctx: int = _Options.n_ctx,
    n_parallel: int = _Options.n_parallel,
    n_batch: int = _Options.n_batch,
    n_threads: int | None = _Options.n_threads,
    n_gpu_layers: int = _Options.n_gpu_layers,
    draft_device: str | None = _Options.draft_device,
    spec_draft_n_max: int | None = None,
    spec_draft_p_min: float = 0.0,
    draft_temperature: float = 1.0,
    accept_rule: AcceptRule = "rejection",
) -> Engine:
    """Loads a target and its drafter, and checks that they fit.

    Args:
        target: GGUF file of the target.
        draft: GGUF file of the drafter; None: plain decoding.
        n_ctx: size of a request's context in tokens; 0: what the target was trained for.
        n_parallel: requests that run side by side, each with its own context.
        n_batch: prompt tokens decoded at once.
        n_threads: None: half of the logical cores.
        n_gpu_layers: target layers on the GPU; -1: all.
        draft_device: device of the drafter, as `dflash2 --list-devices` prints; None: that
            of the target's output head.
        spec_draft_n_max, spec_draft_p_min, draft_temperature, accept_rule: see `Engine`.

    Raises:
        OSError: a file cannot be read (FileNotFoundError: does not exist).
        ModelFormatError: a file is not a GGUF, or not what it should be.
        IncompatibleModelsError: the drafter does not fit the target.
        ValueError: a parameter is out of range.
        MemoryError: not enough memory; found before any is taken.
    """
    tgt, drafter = open_models(
        target,
        draft,
        n_ctx=n_ctx,
        n_parallel=n_parallel,
        n_batch=n_batch,
        n_threads=n_threads,
        n_gpu_layers=n_gpu_layers,
        draft_device=draft_device,
    )
    return Engine(
        tgt,
        drafter,
        spec_draft_n_max=spec_draft_n_max,
        spec_draft_p_min=spec_draft_p_min,
        draft_temperature=draft_temperature,
        accept_rule=accept_rule,
    )


def open_models(
    target: StrPath, draft: StrPath | None = None, **options: Unpack[ModelOptions]
) -> tuple[core.Target, core.GraphDrafter | None]:
    """The checked pair without an engine. Arguments and errors as for `load`."""
    checked = _Options(**options)
    core.require_memory(_plan(target, draft, checked))
    try:
        return _open(target, draft, checked, plan_only=False)
    finally:
        drain_log()


def plan_memory(
    target: StrPath, draft: StrPath | None = None, **options: Unpack[ModelOptions]
) -> list[core.MemoryUse]:
    """What a pair would take, from the headers of its files. Arguments and errors as for `load`."""
    return _plan(target, draft, _Options(**options))


def _plan(target: StrPath, draft: StrPath | None, options: _Options) -> list[core.MemoryUse]:
    for path in (target, draft):
        if path is not None and not Path(path).exists():
            raise FileNotFoundError(f"{os.fspath(path)}: no such file")
    try:
        tgt, drafter = _open(target, draft, options, plan_only=True)
    except BaseException:
        drain_log()
        raise
    core.drain_log()  # loading says it again
    return tgt.memory + (drafter.memory if drafter else [])


def _open(
    target: StrPath, draft: StrPath | None, options: _Options, *, plan_only: bool
) -> tuple[core.Target, core.GraphDrafter | None]:
    """plan_only: checks the pair, which then knows what it would take, and no more."""
    tgt = core.Target(
        os.fsencode(target),
        n_ctx=options.n_ctx,
        n_seq=options.n_parallel,
        n_batch=options.n_batch,
        n_rollback=0 if draft is None else _block_size(draft) - 1,
        n_threads=0 if options.n_threads is None else options.n_threads,
        n_gpu_layers=options.n_gpu_layers,
        plan_only=plan_only,
    )
    if draft is None:
        return tgt, None
    device = tgt.head_device if options.draft_device is None else options.draft_device
    model = core.DraftModel(os.fsencode(draft), device, plan_only=plan_only)
    if plan_only:
        check_pair(DraftFacts.of(model), TargetFacts.of(tgt))
    drafter = core.GraphDrafter(model, tgt, n_threads=tgt.n_threads)
    if plan_only:
        tgt.set_taps(drafter.target_layers())
    return tgt, drafter


def _block_size(draft: StrPath) -> int:
    """Of a drafter that is not open yet; the model checks it."""
    value = core.read_gguf(os.fsencode(draft))[0].get("dflash.block_size")
    return value if isinstance(value, int) and 1 <= value < 2**15 else 1


def _require(name: str, value: int, least: int) -> None:
    if not least <= value < 2**31:
        raise ValueError(f"{name}: expected {least} or more, got {value}")

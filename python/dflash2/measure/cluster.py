"""Spreads a measurement over the machines of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from dflash2.errors import DFlash2Error
from dflash2.measure.recorder import Job, Recorder, Refusal, Settings
from dflash2.measure.store import Record

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util import ActorPool
except ImportError as e:
    raise DFlash2Error("--ray needs Ray; run: pip install 'ggml-dflash2[ray]'") from e


def measure_on(address: str, settings: Settings, jobs: Iterable[Job]) -> Iterator[Record | Refusal]:
    """Yields in the order of completion, from as many engines as the cluster has room for.

    An engine takes its threads, and one GPU when layers are offloaded. Every machine needs this
    package, and the models at the same paths.

    Args:
        address: of a running cluster; "local": one on this machine for as long as it takes.

    Raises:
        DFlash2Error: no cluster, no room for one engine, or an engine failed.
    """
    try:
        with ray.init(address, log_to_driver=False, include_dashboard=False):
            share = {
                "CPU": settings.n_threads or max(1, (os.cpu_count() or 1) // 2),
                "GPU": int(settings.n_gpu_layers != 0),
            }
            actor = ray.remote(num_cpus=share["CPU"], num_gpus=share["GPU"])(Recorder)
            pool = ActorPool([actor.remote(settings) for _ in range(_n_engines(share))])
            for job in jobs:
                pool.submit(lambda engine, job: engine.record.remote(job), job)
                if not pool.has_free():
                    yield pool.get_next_unordered()
            while pool.has_next():
                yield pool.get_next_unordered()
    except RayTaskError as e:
        raise e.cause from e
    except (RayError, ConnectionError) as e:
        reason = str(e).strip().splitlines()[-1]
        raise DFlash2Error(f"--ray {address}: {type(e).__name__}: {reason}") from e


def _n_engines(share: dict[str, Any]) -> int:
    has = ray.available_resources()
    n = min(int(has.get(name, 0) // wanted) for name, wanted in share.items() if wanted > 0)
    if n < 1:
        raise DFlash2Error(f"--ray: expected room for one engine, {share}, found {has}")
    return n

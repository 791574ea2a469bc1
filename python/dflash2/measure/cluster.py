"""Spreads a measurement over the machines of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from dflash2.errors import DFlash2Error
from dflash2.measure.recorder import Job, Recorder, Settings
from dflash2.measure.store import Record


def measure_on(address: str | None) -> Callable[[Settings, Iterable[Job]], Iterator[Record]]:
    """A measurer with one engine per free share of the cluster, in the order of completion.

    Every machine needs this package and the models at the same paths. An engine takes its threads,
    and one GPU when layers are offloaded.

    Args:
        address: of a running cluster; None: one on this machine for as long as it takes.

    Raises:
        DFlash2Error: Ray is not installed, or the cluster has no room for one engine.
    """
    try:
        import ray
        from ray.util import ActorPool
    except ImportError as e:
        raise DFlash2Error("--ray needs Ray; run: pip install 'ggml-dflash2[ray]'") from e

    def measure(settings: Settings, jobs: Iterable[Job]) -> Iterator[Record]:
        with ray.init(address or "local", log_to_driver=False, include_dashboard=False):
            share = {
                "num_cpus": settings.n_threads or max(1, (os.cpu_count() or 1) // 2),
                "num_gpus": int(settings.n_gpu_layers != 0),
            }
            actor = ray.remote(**share)(Recorder)
            pool = ActorPool([actor.remote(settings) for _ in range(_n_engines(share))])
            for job in jobs:
                pool.submit(lambda a, job: a.record.remote(job), job)
                if not pool.has_free():
                    yield pool.get_next_unordered()
            while pool.has_next():
                yield pool.get_next_unordered()

    def _n_engines(share: dict[str, int]) -> int:
        has = ray.available_resources()
        wanted = {"CPU": share["num_cpus"], "GPU": share["num_gpus"]}
        n = min(int(has.get(name, 0) // n) for name, n in wanted.items() if n > 0)
        if n < 1:
            raise DFlash2Error(f"--ray: an engine needs {wanted}, the cluster has {has}")
        return n

    return measure

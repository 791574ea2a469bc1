"""What every test of the tree relies on."""

from __future__ import annotations

import importlib.util
import signal
from typing import Any

import pytest

# A background job starts with SIGINT ignored, and the programs that tests interrupt inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        help="where the tests of this process put whole targets and drafters (default: the CPU)",
    )
    parser.addoption("--llama-cpp", help="a checkout of llama.cpp, to compare its op tables with")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "rounding: holds where batches of any width are rounded alike, as on the CPU"
    )
    config.addinivalue_line("markers", "xllamacpp: runs upstream's server of that package")
    device = config.getoption("--device")
    if device is not None:
        place_models(device)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skipped = {}  # markers and reasons
    if importlib.util.find_spec("xllamacpp") is None:
        skipped["xllamacpp"] = "needs xllamacpp"
    if device := config.getoption("--device"):
        skipped["rounding"] = f"{device} rounds batches of different width by different kernels"
    for item in items:
        for name, reason in skipped.items():
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


def place_models(name: str) -> None:
    """Models that are opened without a place of their own go to this ggml device."""
    from dflash2._native import core

    known = [device[0] for device in core.list_devices()]
    if name not in known:
        raise pytest.UsageError(f"--device: expected one of {', '.join(known)}, got {name}")

    class Target(core.Target):
        def __init__(self, *args: Any, n_gpu_layers: int = 0, **options: Any) -> None:
            super().__init__(*args, n_gpu_layers=n_gpu_layers or -1, **options)

    class DraftModel(core.DraftModel):
        def __init__(self, path: str | bytes, device: str = "", **options: Any) -> None:
            super().__init__(path, device or name, **options)

    core.Target, core.DraftModel = Target, DraftModel

"""One libllama per process, of the version that `_core` was built for."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/maps")
@pytest.mark.parametrize("first", ["dflash2", "llama_cpp", "dflash2.cli.main"])
def test_one_copy_of_libllama(first: str) -> None:
    done = run(f"""
import {first}, dflash2, llama_cpp
maps = open("/proc/self/maps").read().split()
for name in ("libllama.so", "libggml-base.so"):
    print(name, len({{word for word in maps if name in word}}))
""")
    assert done.stdout.splitlines() == ["libllama.so 1", "libggml-base.so 1"], done.stderr


@pytest.mark.parametrize(
    ("fake", "message"),
    [
        ("lambda name: '0.3.35'", "expected version 0.3.36, got 0.3.35"),
        ("raise_missing", "llama-cpp-python is not installed"),
    ],
)
def test_another_llama_cpp_python_is_refused(fake: str, message: str) -> None:
    done = run(f"""
import sys
from importlib import metadata

def raise_missing(name):
    raise metadata.PackageNotFoundError(name)

metadata.version = {fake}
try:
    import dflash2
except ImportError as e:
    print(e)
    print("dflash2._core" in sys.modules)
""")
    text, loaded = done.stdout.splitlines()
    assert message in text
    assert "pip install llama-cpp-python==0.3.36" in text
    assert loaded == "False"


def test_import_prints_nothing_and_logs_nothing() -> None:
    done = run("import dflash2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("first", "expected"),
    [("dflash2", "{lib}/libllama.so"), ("llama_cpp", "expected libllama of {lib}")],
)
def test_module_built_with_another_libllama_loads_that_one(
    first: str, expected: str, tmp_path: Path
) -> None:
    """The other one is the package's own under another path."""
    lib = tmp_path / "lib"
    own = Path(importlib.util.find_spec("llama_cpp").origin).parent / "lib"
    if not own.exists():
        pytest.skip("llama-cpp-python was built without its libllama")
    lib.symlink_to(own)
    done = run(f"""
import sys, types

recorded = types.ModuleType("dflash2._llama_root")
recorded.LLAMA_ROOT = {str(tmp_path)!r}
sys.modules[recorded.__name__] = recorded
try:
    import {first}, dflash2
    from llama_cpp import llama_cpp
    print(llama_cpp._lib._name)
except ImportError as e:
    print(e)
""")
    assert expected.format(lib=lib) in done.stdout, done.stderr

"""The GPU benchmark, run dry: tiny models of the same kinds on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import bench_gpu
import gpu_meter
import make_shapes
import pytest

SCRIPT = bench_gpu.__file__
Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("shapes")
    target = make_shapes.make_target(folder / "target.gguf", "q4_k", make_shapes.TINY)
    return target, make_shapes.make_drafter(folder / "draft.gguf", target)


def run(pair: Pair, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    models = ["-m", str(pair[0]), "-md", str(pair[1]), "--server", "xllamacpp", "-o", str(out)]
    sizes = ["--contexts", "40", "-n", "16", "-r", "1", "-ngl", "0", "-t", "1"]
    command = [sys.executable, SCRIPT, *models, *sizes, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_one_table_of_every_contender_in_every_setting(pair: Pair, tmp_path: Path) -> None:
    out = tmp_path / "table"
    lengths = ["--accept-lengths", "3.8,4.8", "--n-max", "7", "--ours", "auto,5"]
    done = run(pair, out, "--unforced", *lengths, "--at-once", "2")
    assert done.returncode == 0, done.stderr
    table = json.loads(out.with_suffix(".json").read_text())
    assert table["forced"] is False
    seen = [(r["temperature"], r["name"], r["nominal_length"]) for r in table["rows"]]
    own = [
        ("plain", None),
        ("ours auto", 3.8),
        ("ours 5", 3.8),
        ("ours auto", 4.8),
        ("ours 5", 4.8),
    ]
    servers = [("llama-server plain", None), ("llama-server 7", 3.8), ("llama-server 7", 4.8)]
    for temperature in (0.0, 1.0):
        its = [(name, length) for t, name, length in seen if t == temperature]
        assert its == [*own, *servers[:2], *own, *servers[2:]]
    assert all(r["tokens_per_second"] > 0 and r["first_token_ms"] > 0 for r in table["rows"])
    assert len(done.stdout.splitlines()) == 2 + len(seen)
    assert out.with_suffix(".md").read_text().startswith(done.stdout.rstrip("\n"))


def test_forced_acceptance_needs_a_build_for_benchmarks(pair: Pair, tmp_path: Path) -> None:
    if hasattr(bench_gpu.dflash2._native.core.Engine, "set_synthetic_acceptance"):
        pytest.skip("this is one")
    done = run(pair, tmp_path / "table")
    assert done.returncode == 1
    assert "build it with -DDFLASH2_BENCH=ON" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("length", [1.5, 3.8, 4.8, 7.9])
def test_rates_have_the_accept_length_of_a_whole_block(length: float) -> None:
    rates = bench_gpu.synthetic_rates(length, 7, 7)
    assert 1 + sum(rates) == pytest.approx(length)
    assert rates == sorted(rates, reverse=True)
    assert bench_gpu.synthetic_rates(length, 3, 7) == rates[:3]
    assert bench_gpu.expected_length(length, 7, 7) == pytest.approx(length)
    assert bench_gpu.expected_length(length, 3.5, 7) == pytest.approx(
        1 + sum(rates[:3]) + rates[3] / 2
    )


def test_upstream_accepts_at_these_rates(pair: Pair) -> None:
    rates = bench_gpu.synthetic_rates(4.8, 7, 7)
    flags = bench_gpu.server_flags(*pair, n_draft_max=7, n_ctx=512, n_threads=1, n_gpu_layers=0)
    flags += ["--spec-synth-rates", ",".join(map(str, rates))]
    with bench_gpu.ServerProcess(bench_gpu.program("xllamacpp"), flags) as process:
        process.complete(list(range(300, 340)), 400, temperature=0.0, ignore_eos=True)
        counters = process.counters()
    # A standard error of 0.26 on about 85 rounds.
    assert 1 + counters.num_accepted_tokens / counters.num_drafts == pytest.approx(4.8, abs=1.2)


def test_floor_counts_each_weight_that_a_pass_reads_once(pair: Pair) -> None:
    floor = gpu_meter.floor_of(*pair, bandwidth=1e9)
    s = make_shapes.TINY
    read = [t for t in make_shapes.target_tensors(s, "q4_k") if t.name != "token_embd.weight"]
    assert floor.target == sum(t.n_bytes for t in read)
    assert floor.position == 2 * 2 * s.n_layer * s.n_head_kv * s.head_dim
    [head] = [t.n_bytes for t in read if t.name == "output.weight"]
    assert head < floor.draft < head + pair[1].stat().st_size
    plain = floor.round_ms(100, drafts=False)
    assert plain == pytest.approx(1e3 * (floor.target + 100 * floor.position) / 1e9)
    assert floor.round_ms(100, drafts=True) == pytest.approx(plain + 1e3 * floor.draft / 1e9)

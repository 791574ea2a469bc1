"""The command: data on stdout, talk on stderr, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import dflash2_to_gguf
import pytest

SCRIPT = Path(dflash2_to_gguf.__file__)


def test_json_summary_lists_tensors_and_commands(
    drafter: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.gguf"
    args = [str(drafter), "--target", str(target), "--outtype", "BF16", "--outfile", str(out)]
    assert dflash2_to_gguf.main([*args, "--json"]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert captured.err == ""
    assert (summary["outfile"], summary["n_bytes"]) == (str(out), out.stat().st_size)
    assert len(summary["tensors"]) == 36
    assert {t["max_error"] for t in summary["tensors"]} == {0.0}
    server, generate = summary["commands"]
    assert server == (
        f"llama-server -m {target} -md {out} --spec-type draft-dflash --spec-draft-n-max 7"
    )
    assert generate.startswith(f"dflash2 generate -m {target} -md {out} ")


def test_table_shows_every_tensor_and_what_to_run(
    drafter: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.gguf"
    args = [str(drafter), "--target", str(target), "--outtype", "q8_0", "--outfile", str(out)]
    assert dflash2_to_gguf.main(args) == 0
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if line.startswith("fc.weight"))
    assert row.split()[1:5] == ["[768,", "256]", "q8_0", "0.2"]
    assert "wrote and verified" in text
    assert f"  llama-server -m {target} -md {out} --spec-type draft-dflash" in text


def test_dry_run_plans_the_exact_size_and_writes_nothing(
    drafter: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.gguf"
    args = [str(drafter), "--target", str(target), "--outfile", str(out), "--json"]
    assert dflash2_to_gguf.main([*args, "--dry-run"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert list(tmp_path.iterdir()) == []
    assert dflash2_to_gguf.main(args) == 0
    done = json.loads(capsys.readouterr().out)
    assert plan["n_bytes"] == done["n_bytes"] == out.stat().st_size
    assert [t["type"] for t in plan["tensors"]] == [t["type"] for t in done["tensors"]]
    assert {t["rms_error"] for t in plan["tensors"]} == {None}


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_memory_of_the_plan_is_enough_for_the_conversion(
    drafter: Path, target: Path, tmp_path: Path
) -> None:
    script = (
        "import pathlib, sys, drafter_convert\n"
        "r = drafter_convert.convert(*sys.argv[1:3], outtype='q4_k_m', outfile=sys.argv[3])\n"
        "status = pathlib.Path('/proc/self/status').read_text().split()\n"
        "print(r.memory_bytes, int(status[status.index('VmHWM:') + 1]) * 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(drafter), str(target), str(tmp_path / "x.gguf")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    planned, peak = map(int, done.stdout.split())
    assert peak < 1.5 * planned
    assert planned < 1.5 * peak


def test_runs_as_a_script_from_anywhere_without_bars_in_a_pipe(
    drafter: Path, target: Path, tmp_path: Path
) -> None:
    args = [str(drafter), "--target", str(target), "--outtype", "f16"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *args],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "dflash-tiny-F16.gguf").is_file()


def test_ctrl_c_exits_with_130_and_leaves_nothing(
    drafter: Path,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import drafter_convert

    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(drafter_convert, "verify_gguf", interrupt)
    args = [str(drafter), "--target", str(target), "--outtype", "bf16"]
    assert dflash2_to_gguf.main([*args, "--outfile", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "error: interrupted; nothing was written\n"
    assert list(tmp_path.iterdir()) == []


def test_function_and_command_take_the_same_options() -> None:
    import inspect

    options = set(inspect.signature(dflash2_to_gguf.convert).parameters) - {"on_progress"}
    parsed = vars(dflash2_to_gguf._parser().parse_args(["d", "--target", "t"]))
    assert options == set(parsed) - {"json"}

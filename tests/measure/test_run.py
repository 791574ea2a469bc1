"""The command measure: results, resuming, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from dflash2.cli.main import main

Pair = tuple[Path, Path]
Capture = pytest.CaptureFixture[str]

LINES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": f"the {word}"}], "task": task}
    for task in ("code", "chat")
    for word in ("cat", "dog", "sun", "sea", "owl")
]


def run(*args: str | Path) -> int:
    try:
        return main([str(arg) for arg in args])
    except SystemExit as e:
        return int(e.code or 0)


def write(path: Path, lines: list[Any]) -> Path:
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def command(pair: Pair, traffic: Path, out: Path) -> list[str | Path]:
    models = ("-m", pair[0], "-md", pair[1], "-c", "256", "-t", "1")
    return ["measure", *models, "--traffic", traffic, "--out", out, "-n", "20"]


def result(pair: Pair, traffic: Path, out: Path, *args: str, capsys: Capture) -> dict[str, Any]:
    assert run(*command(pair, traffic, out), "--json", *args) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]


def test_every_request_is_measured_and_split(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    lines = [*LINES, {"prompt": "once", "temperature": 1, "task": "chat"}]
    traffic = write(tmp_path / "t.jsonl", lines)
    found = result(pair, traffic, tmp_path / "out", "--label", "task", capsys=capsys)
    assert (found["requests"], found["generated"], found["skipped"]) == (11, 11, 0)
    assert list(found["labels"]["task"]) == ["chat", "code"]
    assert found["labels"]["task"]["chat"]["requests"] == 6
    assert set(found["temperatures"]) == {"0", "1"}
    assert found["tokens"] == sum(record["n_answer"] for record in records(tmp_path / "out"))
    whole = found["overall"]
    assert whole["mean_accept_length"] == pytest.approx(1 + sum(whole["survival"]))
    low, high = whole["interval"]
    assert low <= whole["mean_accept_length"] <= high
    assert found["projection"] is None


def test_replay_agrees_with_the_counters_of_the_generation(
    pair: Pair, tmp_path: Path, capsys: Capture
) -> None:
    found = result(pair, write(tmp_path / "t.jsonl", LINES), tmp_path / "out", capsys=capsys)
    assert found["replayed_generation"]["survival"] == found["generation"]["survival"]
    assert found["replayed_generation"]["rounds"] == found["generation"]["rounds"] > 50


def test_a_recorded_answer_gives_what_its_generation_gave(
    real_pair: Pair, tmp_path: Path, capsys: Capture
) -> None:
    lines = [{"prompt": text} for text in ("The capital of France is", "def add(a, b):")]
    generated = write(tmp_path / "a.jsonl", lines)
    of_generated = result(real_pair, generated, tmp_path / "a", "-n", "12", capsys=capsys)
    answers = [record["generated"] for record in records(tmp_path / "a")]
    lines = [line | {"completion": text} for line, text in zip(lines, answers, strict=True)]
    recorded = write(tmp_path / "b.jsonl", lines)
    of_recorded = result(real_pair, recorded, tmp_path / "b", capsys=capsys)
    assert of_recorded["generated"] == 0
    assert of_recorded["overall"] == of_generated["overall"]
    assert of_recorded["overall"]["mean_accept_length"] > 1.5
    assert of_recorded["likeliest"] > 0.95


def test_a_killed_run_goes_on_to_the_same_result(
    pair: Pair, tmp_path: Path, capsys: Capture
) -> None:
    traffic = write(tmp_path / "t.jsonl", [*LINES, {"prompt": "x", "temperature": 1}])
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run(*command(pair, traffic, whole), "--label", "task", "-q") == 0
    args = [str(arg) for arg in command(pair, traffic, broken)]
    process = subprocess.Popen([sys.executable, "-m", "dflash2", *args, "--label", "task", "-q"])
    rows = broken / "requests.jsonl"
    while not rows.exists() or rows.read_bytes().count(b"\n") < 3:
        assert process.poll() is None, "ended before it could be killed"
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert not (broken / "summary.json").exists(), "ended before it was killed"
    with rows.open("ab") as file:
        file.write(b'{"key": "half a li')
    n_done = rows.read_bytes().count(b"\n")
    assert run(*command(pair, traffic, broken), "--label", "task", "-q") == 0
    assert n_done < len(LINES)
    assert (broken / "summary.json").read_bytes() == (whole / "summary.json").read_bytes()
    assert rows.read_bytes() == (whole / "requests.jsonl").read_bytes()
    capsys.readouterr()


def test_nothing_is_measured_twice(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    traffic = write(tmp_path / "t.jsonl", [LINES[0], LINES[1], LINES[0]])
    first = result(pair, traffic, tmp_path / "out", capsys=capsys)
    assert first["requests"] == 3
    assert len(records(tmp_path / "out")) == 2
    write(traffic, LINES[:3])
    assert result(pair, traffic, tmp_path / "out", capsys=capsys)["requests"] == 3
    assert len(records(tmp_path / "out")) == 3


def test_other_settings_are_measured_anew(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    traffic = write(tmp_path / "t.jsonl", LINES[:1])
    for args in ((), ("--spec-draft-n-max", "2"), ("--temp", "1"), ("-c", "128")):
        result(pair, traffic, tmp_path / "out", *args, capsys=capsys)
    found = records(tmp_path / "out")
    assert len({record["key"] for record in found}) == 4
    assert [len(record["accepted_per_pos"]) for record in found] == [7, 2, 7, 7]


def test_a_bad_line_ends_the_run_before_it_starts(
    pair: Pair, tmp_path: Path, capsys: Capture
) -> None:
    traffic = write(tmp_path / "t.jsonl", [LINES[0], '{"promt": "x"}'])
    assert run(*command(pair, traffic, tmp_path / "out")) == 1
    error = capsys.readouterr().err
    assert error == f"error: {traffic}:2: expected either messages or prompt, got promt\n"
    assert records(tmp_path / "out") == []


def test_skip_bad_counts_what_cannot_be_measured(
    pair: Pair, tmp_path: Path, capsys: Capture
) -> None:
    long = {"prompt": "word " * 300}
    traffic = write(tmp_path / "t.jsonl", [LINES[0], "{}", long, LINES[1]])
    assert run(*command(pair, traffic, tmp_path / "a")) == 1
    write(traffic, [LINES[0], long])
    assert run(*command(pair, traffic, tmp_path / "a")) == 1
    assert f"error: {traffic}:2: prompt: " in capsys.readouterr().err
    write(traffic, [LINES[0], "{}", long, LINES[1]])
    for _ in range(2):  # once measured, once read back
        found = result(pair, traffic, tmp_path / "a", "--skip-bad", capsys=capsys)
        assert (found["requests"], found["skipped"]) == (2, 2)


def test_a_label_that_no_line_has_is_named(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    traffic = write(tmp_path / "t.jsonl", LINES)
    assert run(*command(pair, traffic, tmp_path / "out"), "--label", "tsak") == 1
    assert "no line has the label tsak; found task" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_empty_traffic_is_refused(pair: Pair, tmp_path: Path, capsys: Capture, text: str) -> None:
    traffic = tmp_path / "t.jsonl"
    traffic.write_text(text)
    assert run(*command(pair, traffic, tmp_path / "out")) == 1
    assert "expected at least one request, found none" in capsys.readouterr().err


def test_a_file_that_is_no_store_is_refused(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    traffic = write(tmp_path / "t.jsonl", LINES)
    (tmp_path / "requests.jsonl").write_text('{"not": "ours"}\n')
    assert run(*command(pair, traffic, tmp_path)) == 1
    assert "requests.jsonl:1: expected a record of dflash2 measure" in capsys.readouterr().err
    assert (tmp_path / "requests.jsonl").read_text() == '{"not": "ours"}\n'


@pytest.mark.parametrize("args", [("--temp", "-1"), ("-n", "0"), ("--spec-draft-n-max", "0")])
def test_values_out_of_range_are_usage_errors(
    pair: Pair, tmp_path: Path, capsys: Capture, args: tuple[str, str]
) -> None:
    assert run(*command(pair, tmp_path / "t.jsonl", tmp_path / "out"), *args) == 2
    assert args[0] in capsys.readouterr().err


def test_text_names_every_group(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    traffic = write(tmp_path / "t.jsonl", LINES)
    assert run(*command(pair, traffic, tmp_path / "out"), "--label", "task") == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith("10 requests, ")
    rows = [line.split()[0] for line in out.splitlines()[2:] if line]
    assert rows[:5] == ["requests", "all", "task", "chat", "code"]
    assert str(tmp_path / "out") in err


def test_parquet_holds_a_row_per_request(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    traffic = write(tmp_path / "t.jsonl", LINES[:3])
    result(pair, traffic, tmp_path / "out", "--parquet", capsys=capsys)
    table = parquet.read_table(tmp_path / "out" / "requests.parquet").to_pylist()
    assert table == records(tmp_path / "out")

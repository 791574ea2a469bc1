"""dflash2 bench: paired runs of plain decoding, our engine and upstream's server."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import dflash2
import pytest
from dflash2 import SamplingParams
from dflash2.bench import Run, measure, summarize
from dflash2.cli.main import main
from dflash2.prompts import read_prompts
from dflash2.upstream.command import XLLAMACPP, find_server, server_flags
from dflash2.upstream.process import ServerProcess

Pair = tuple[Path, Path]
Capture = pytest.CaptureFixture[str]

LIMITS = ("-c", "256", "-t", "1", "-n", "8")


def a_run(n_tokens: int, seconds: float, accepted: int = 0, drafts: int = 0) -> Run:
    return Run(
        n_tokens=n_tokens,
        seconds=seconds,
        num_rounds=n_tokens - accepted,
        num_drafts=drafts,
        num_verified_tokens=3 * drafts,
        num_accepted_tokens=accepted,
        draft_ms=100.0 * drafts,
        verify_ms=500.0 * seconds,
    )


class Recorder:
    """A contender that writes down who ran what."""

    def __init__(self, name: str, log: list[tuple[str, int, int | None]]) -> None:
        self.name = name
        self.log = log

    def run(self, prompt: list[int], params: SamplingParams) -> Run:
        self.log.append((self.name, prompt[0], params.seed))
        return a_run(10, 1.0)


def test_contenders_meet_each_prompt_together_with_one_seed_and_in_turn() -> None:
    log: list[tuple[str, int, int | None]] = []
    contenders = [Recorder(name, log) for name in "abc"]
    runs = measure(contenders, [[1], [2]], SamplingParams(temperature=1.0), repetitions=2)
    assert [[len(of) for of in each] for each in runs] == [[2, 2]] * 3
    counted = log[3:]  # after the warm-up
    groups = [counted[i : i + 3] for i in range(0, len(counted), 3)]
    assert [{name for name, _, _ in group} for group in groups] == [set("abc")] * 4
    assert [group[0][0] for group in groups] == ["a", "b", "c", "a"]
    assert [{prompt for _, prompt, _ in group} for group in groups] == [{1}, {2}, {1}, {2}]
    assert [{seed for _, _, seed in group} for group in groups] == [{0}, {1}, {2}, {3}]


def test_a_row_is_the_median_of_repetitions_and_pairs_each_with_plain() -> None:
    plain = [[a_run(10, 1.0)], [a_run(10, 2.0)], [a_run(10, 1.0)]]
    ours = [[a_run(12, 0.5, 6, 6)], [a_run(12, 1.0, 6, 6)], [a_run(12, 0.75, 6, 6)]]
    row = summarize("ours", ours, plain)
    assert row.tokens_per_second == pytest.approx(16.0)
    assert row.tokens_per_second_spread == pytest.approx((24 - 12) / 2)
    assert row.speed_up == pytest.approx(2.4)
    assert row.speed_up_spread == pytest.approx((2.4 - 1.6) / 2)
    assert row.accept_length == pytest.approx(2.0)
    assert row.round_ms == pytest.approx(2250 / 18)
    assert row.draft_ms == pytest.approx(100.0)
    assert row.verify_ms == pytest.approx(1125 / 18)
    assert row.host_ms == 0.0  # never negative


def bench(pair: Pair, tmp_path: Path, *args: str) -> int:
    (tmp_path / "prompts.txt").write_text("the cat\na dog\n")
    models = ["-m", str(pair[0]), "-md", str(pair[1]), "--prompts", str(tmp_path / "prompts.txt")]
    return main(["bench", *models, *LIMITS, *args])


@pytest.mark.xllamacpp
def test_all_engines_are_measured_in_one_run(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    more = ("-r", "2", "--spec-draft-n-max", "auto,3", "--server", "xllamacpp", "--ignore-eos")
    assert bench(pair, tmp_path, *more, "-o", "json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    result = json.loads(out)
    assert (result["prompts"], result["repetitions"], result["n_threads"]) == (2, 2, 1)
    rows = {row["name"]: row for row in result["rows"]}
    assert list(rows) == ["plain", "ours auto", "ours 3", "llama-server plain", "llama-server 3"]
    assert {row["n_tokens"] for row in rows.values()} == {2 * 2 * 7}  # after the first one
    assert rows["plain"]["speed_up"] == 1.0
    assert all(row["tokens_per_second"] > 0 for row in rows.values())
    assert rows["llama-server 3"]["accept_length"] >= 1.0
    assert rows["llama-server 3"]["draft_ms"] > 0
    assert rows["llama-server plain"]["draft_ms"] is None
    assert rows["ours 3"]["verify_ms"] > 0


def test_output_is_a_table_or_csv(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    assert bench(pair, tmp_path, "-r", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(" | ")[0].strip("| ") == "engine"
    assert len({len(line) for line in lines[:4]}) == 1
    assert bench(pair, tmp_path, "-r", "1", "-o", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["name"] for row in rows] == ["plain", "ours auto"]


def test_prompts_are_filled_to_a_length(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    assert bench(pair, tmp_path, "-r", "1", "-p", "100", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["prompt_tokens"] == 200


@pytest.mark.xllamacpp
def test_server_takes_the_same_law(pair: Pair) -> None:
    """Greedy text of the real server equals ours: same prompt ids, nothing of its defaults."""
    with dflash2.load(*pair, n_ctx=256, n_threads=1, spec_draft_n_max=7) as engine:
        prompt = engine.tokenize("the cat sat")
        ours = engine.generate(prompt, SamplingParams(max_tokens=12, ignore_eos=True))
    with ServerProcess(XLLAMACPP, server_flags(pair[0], n_ctx=256, n_threads=1)) as server:
        answer = server.complete(prompt, 12, temperature=0.0, ignore_eos=True, return_tokens=True)
        assert answer["tokens"] == list(ours.tokens)
        with pytest.raises(dflash2.DFlash2Error, match="status 400"):
            server.complete(list(range(300)), 1)


@pytest.mark.xllamacpp
def test_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(dflash2.DFlash2Error, match=r"ended with status 1; .*nowhere\.gguf"):
        ServerProcess(XLLAMACPP, server_flags("nowhere.gguf"))
    with pytest.raises(FileNotFoundError, match=r"nowhere: expected llama\.cpp's server"):
        find_server(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("p.txt", b"\n\n", "expected at least one prompt"),
        ("p.txt", b"\xff", "expected UTF-8 text"),
        ("p.jsonl", b'{"prompt": ""}', r"p\.jsonl:1: prompt: expected text"),
    ],
)
def test_bad_prompt_files_are_named(
    name: str, content: bytes, expected: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=expected):
        read_prompts(tmp_path / name)


@pytest.mark.parametrize("option", ["--spec-draft-n-max=0", "--spec-draft-n-max=x", "-r=0"])
def test_wrong_usage_is_refused(option: str, pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as e:
        bench(pair, tmp_path, option)
    assert e.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")

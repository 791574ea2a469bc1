"""dflash2 tune: what drafting brings, and the flags that follow from it."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import dflash2
import pytest
from dflash2 import SamplingParams
from dflash2.cli.main import main
from dflash2.costs import CostTable
from dflash2.errors import DFlash2Error
from dflash2.loader import open_models
from dflash2.prompts import ask
from dflash2.tune.result import Saved, TuneResult, expect, saved_path
from dflash2.tune.workload import Answer, Workload

Pair = tuple[Path, Path]
Capture = pytest.CaptureFixture[str]

# A pass costs 10 ms and 1 ms for each row after the first, but 3 rows cost less than 2.
COSTS = CostTable(
    contexts=(100,),
    plain_ms=(10.0,),
    pass_ms=((10.0, 13.0, 12.0, 13.0),),
    draft_ms=((2.0, 2.0),),
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where results are saved, instead of the user's."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def answer(rounds: tuple[float, ...], match: tuple[float, ...] | None = None) -> Answer:
    return Answer(
        label="",
        n_tokens=int(rounds[0]),
        n_context=100,
        rounds=rounds,
        rounds_match=match or rounds,
        plain_ms=10.0 * rounds[0],
        drafted_ms=14.0 * rounds[-1],
        drafted_rounds=int(rounds[-1]),
    )


def result(overall_rounds: tuple[float, ...]) -> TuneResult:
    overall = expect("all", [answer(overall_rounds)], COSTS)
    return TuneResult(
        target="t.gguf",
        draft="d.gguf",
        settings={"n_ctx": 512},
        costs=COSTS,
        overall=overall,
        classes=(overall,),
    )


def test_expected_speed_is_tokens_over_the_time_of_their_rounds() -> None:
    of = expect("code", [answer((60.0, 40.0, 30.0)), answer((40.0, 20.0, 20.0))], COSTS)
    assert of.tokens_per_round == pytest.approx((1.0, 100 / 60, 2.0))
    # Not padded to three rows: a fixed length is not.
    assert of.tokens_per_second == pytest.approx((100.0, 1e5 / (60 * 15), 1e5 / (50 * 14)))
    assert of.best == 2
    assert of.speed_up == pytest.approx(100 / 50 * 10 / 14)
    assert of.server_tokens_per_second == of.tokens_per_second


def test_llama_server_is_judged_by_its_own_rule() -> None:
    of = expect("", [answer((100.0, 60.0, 50.0), match=(100.0, 95.0, 90.0))], COSTS)
    assert (of.best, of.server_best) == (2, 0)


def test_a_speed_up_within_the_error_is_none() -> None:
    assert expect("", [answer((100.0, 100.0, 70.9))], COSTS).best == 0
    assert expect("", [answer((100.0, 100.0, 68.0))], COSTS).best == 2


def test_the_reason_adds_up() -> None:
    said = result((100.0, 90.0, 50.0)).reason
    assert said == (
        "drafting 2 a round costs 1.40 plain steps (1.20 to verify, 0.20 to draft) "
        "and brings 2.00 tokens: 1.43x"
    )


@pytest.mark.rounding
def test_expected_rounds_are_those_of_the_engine(real_pair: Pair) -> None:
    target, drafter = open_models(*real_pair, n_ctx=512, n_threads=1)
    assert drafter is not None
    prompt = ask("lists", "List the planets of the solar system.")
    params = SamplingParams(max_tokens=20)
    workload = Workload(target, drafter, params)
    (found,) = workload.answers([prompt])
    engine = dflash2.Engine(target, drafter, spec_draft_n_max=drafter.max_draft())
    stats = engine.generate(prompt.tokens(engine), params).stats
    assert stats.num_accepted_tokens > 5
    assert found.rounds[-1] == pytest.approx(stats.num_rounds, abs=1)  # near-ties may differ
    assert found.n_tokens == found.rounds[0] == 19
    assert list(found.rounds) == sorted(found.rounds, reverse=True)
    assert found.rounds_match == found.rounds  # at temperature 0
    sampled = Workload(target, drafter, replace(params, temperature=1.0, max_tokens=8))
    (found,) = sampled.answers([prompt])
    assert all(a <= b + 1e-6 for a, b in zip(found.rounds, found.rounds_match, strict=True))
    assert found.rounds[-1] < found.rounds[0]


def tune(pair: Pair, tmp_path: Path, *args: str) -> int:
    lines = [{"prompt": "the cat", "task": "prose"}, {"prompt": "a b", "task": "code"}]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    models = ["-m", str(pair[0]), "-md", str(pair[1]), "-c", "512", "-t", "1"]
    return main(["tune", *models, "--prompts", str(file), "-n", "8", "-r", "2", *args])


def test_a_drafter_that_does_not_pay_is_refused_with_the_reason(
    pair: Pair, tmp_path: Path, capsys: Capture, pytestconfig: pytest.Config
) -> None:
    if pytestconfig.getoption("--device"):
        pytest.skip("where a pass costs as much for several rows, it pays")
    assert tune(pair, tmp_path) == 0
    out, err = capsys.readouterr()
    assert "do not use a drafter here: drafting" in out
    for word in ("prose", "code", "all", "best, x plain"):
        assert word in out
    (ours, server) = out.splitlines()[-2:]
    assert ours.split() == ["dflash2", "dflash2", "generate", "-m", str(pair[0])]
    assert "-md" not in shlex.split(server)
    assert str(saved_path(str(pair[0]), str(pair[1]))) in err


def test_json_holds_everything_and_is_saved(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    assert tune(pair, tmp_path, "--json", "-q", "--contexts", "30,60") == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert [of["label"] for of in found["classes"]] == ["prose", "code"]
    assert len(found["overall"]["tokens_per_second"]) == 8
    assert found["costs"]["contexts"] == [30, 60]
    path = saved_path(str(pair[0]), str(pair[1]))
    assert CostTable.load(path).contexts == (30, 60)
    saved = Saved.load(path)
    assert saved is not None
    assert saved.n_draft_max == found["overall"]["server_best"]
    assert saved.settings["n_threads"] == 1
    assert list(path.parent.iterdir()) == [path]  # nothing partial beside it


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tune.json"
    assert Saved.load(path) is None
    result((100.0, 90.0, 50.0)).save(path)
    saved = Saved.load(path)
    assert saved is not None
    assert (saved.n_draft_max, saved.settings) == (2, {"n_ctx": 512})


@pytest.mark.parametrize("text", ["", "{}", '{"format": "dflash2 tune 1"}', '{"format": 3}', "[]"])
def test_a_broken_result_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "tune.json").write_text(text)
    with pytest.raises(DFlash2Error, match=r"tune\.json: expected a result .* run dflash2 tune"):
        Saved.load(tmp_path / "tune.json")


@pytest.mark.parametrize("args", [["--temp", "-1"], ["-n", "0"], ["--contexts", "0"]])
def test_wrong_usage_is_refused(
    args: list[str], pair: Pair, tmp_path: Path, capsys: Capture
) -> None:
    with pytest.raises(SystemExit) as e:
        tune(pair, tmp_path, *args)
    assert e.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_context_that_does_not_fit_is_named(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    assert tune(pair, tmp_path, "--contexts", "600") == 1
    assert "error: the context of 512 tokens is full" in capsys.readouterr().err

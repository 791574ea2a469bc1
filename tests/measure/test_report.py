"""The report: its words, that it needs nothing else, and how a browser shows it."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from dflash2.costs import CostTable
from dflash2.measure.projection import project
from dflash2.measure.report import render
from dflash2.measure.store import Record
from dflash2.measure.summary import Summary, summarize
from dflash2.measure.tally import Tally
from dflash2.measure.verdict import judge
from matplotlib import image

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
N_DRAFT = 7
BLUE = "#3b82d0"


def record(i: int, survival: float, **fields: object) -> Record:
    """A request with 20 rounds, of which each token is kept with this probability."""
    survivors = tuple(20 * (survival + 0.01 * (i % 3)) ** k for k in range(1, N_DRAFT + 1))
    tally = Tally(part="answer", context=128 << (i % 3), rounds=20.0, survivors=survivors)
    known = {"temperature": 0.0, "n_prompt": 9, "n_answer": 60, "n_likeliest": 59, "labels": {}}
    return Record(key=str(i), line=i, tallies=(tally,), **{**known, **fields})  # type: ignore[arg-type]


def summary_of(**survivals: float) -> Summary:
    """24 requests per kind of task."""
    records = [
        record(i, survival, labels={"task": task})
        for task, survival in survivals.items()
        for i in range(24)
    ]
    return summarize(records, ["task"])


def costs(verify: float, draft: float = 0.1) -> CostTable:
    """A plain step takes 1 ms, every further row of a pass `verify` ms."""
    rows = tuple(1.0 + verify * r for r in range(N_DRAFT + 1))
    return CostTable(
        contexts=(0,),
        plain_ms=(1.0,),
        pass_ms=(rows,),
        draft_ms=((draft,) * N_DRAFT,),
    )


def page(summary: Summary, table: CostTable | None = None) -> str:
    projection = None if table is None else project(summary, table)
    return render(summary, projection, title="A on B", facts={"Traffic": "t.jsonl"})


# -- words


@pytest.mark.parametrize(
    ("verify", "pays", "headline", "advice"),
    [
        (0.02, True, "Yes, use the drafter: expect about", "`--spec-draft-n-max 7`"),
        (0.9, False, "No: with this drafter, this machine would be slower.", "Decode plainly"),
        (0.65, False, "It hardly matters", "Decode plainly"),
    ],
)
def test_the_verdict_follows_the_costs(
    verify: float, pays: bool, headline: str, advice: str
) -> None:
    summary = summary_of(chat=0.8)
    verdict = judge(summary, project(summary, costs(verify)))
    assert verdict.pays is pays
    assert verdict.headline.startswith(headline)
    assert advice in verdict.advice[0]


def test_without_costs_the_verdict_is_open() -> None:
    verdict = judge(summary_of(chat=0.8), None)
    assert verdict.pays is None
    assert "dflash2 tune" in verdict.advice[0]


def test_expected_speed_is_tokens_over_time() -> None:
    summary = summary_of(chat=0.8)
    projection = project(summary, costs(0.1))
    assert projection is not None
    assert summary.overall is not None
    for m in range(1, N_DRAFT + 1):
        tokens = 1 + sum(summary.overall.survival[:m])
        assert projection.speed_up[m] == pytest.approx(tokens / (1.1 + 0.1 * m))
    assert projection.speed_up[0] == 1.0


def test_a_weak_label_is_named_with_what_it_costs() -> None:
    summary = summary_of(code=0.9, chat=0.2)
    advice = " ".join(judge(summary, project(summary, costs(0.05, 0.3))).advice)
    assert re.search(r"By task, it does not pay for chat \(0\.\d\d times\)", advice)
    assert "clearly fewer drafted tokens than on average are kept for chat." in advice


def test_a_broken_drafter_leads_to_the_doctor() -> None:
    assert "dflash2 doctor" in judge(summary_of(chat=0.05), None).advice[0]


def test_answers_of_another_model_are_noticed() -> None:
    summary = summarize([record(i, 0.5, n_likeliest=30) for i in range(20)])
    assert any("another model" in advice for advice in judge(summary, None).advice)


def test_few_requests_have_no_interval_and_are_called_uncertain() -> None:
    summary = summarize([record(i, 0.5) for i in range(5)])
    assert summary.overall is not None
    assert summary.overall.interval is None
    assert "The numbers are uncertain: measure more requests." in judge(summary, None).advice


def test_nothing_measured_is_said() -> None:
    summary = summarize([], n_skipped=1)
    assert (summary.requests, summary.skipped, summary.overall) == (0, 1, None)
    assert "Nothing was measured." in page(summary)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    random = np.random.default_rng(0)
    hits = 0
    for _ in range(50):
        records = []
        for i in range(40):
            rounds = int(random.integers(5, 40))
            kept = float(random.binomial(rounds, random.beta(4, 4)))
            tally = Tally(part="answer", context=0, rounds=rounds, survivors=(kept,))
            records.append(
                Record(key=str(i), line=i, labels={}, temperature=0, n_answer=2, tallies=(tally,))
            )
        group = summarize(records).overall
        assert group is not None
        assert group.interval is not None
        hits += group.interval[0] <= 1.5 <= group.interval[1]
    assert 41 <= hits <= 50


# -- the page


def test_the_page_needs_nothing_else_and_is_small() -> None:
    text = page(summary_of(code=0.9, chat=0.5), costs(0.1))
    assert len(text) < 1_000_000
    assert not re.search(r"<(script|link|img|iframe)|src=|@import|url\((?!#)", text)
    assert text.count("<svg") == 6


def test_what_users_wrote_stays_text() -> None:
    bad = "<script>alert(1)</script>$x$"
    records = [record(i, 0.5, labels={"task": bad if i % 2 else "b"}) for i in range(20)]
    text = page(summarize(records, ["task"]))
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_the_same_summary_gives_the_same_page() -> None:
    summary = summarize([record(i, 0.5) for i in range(20)])
    assert page(summary) == page(summary)


# -- in a browser


FRAME = """<body style="margin: 0"><iframe style="border: 0; width: {width}px; height: 3000px"
srcdoc="{page}"></iframe><script>onload = () => {{
const root = document.querySelector("iframe").contentDocument.documentElement;
document.title = [root.scrollWidth, root.scrollHeight]; }}</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs a program chromium")
@pytest.mark.parametrize(
    ("width", "dark", "background"), [(1100, False, "#ffffff"), (380, True, "#12161d")]
)
def test_a_browser_shows_it_on_a_desk_and_on_a_phone(
    tmp_path: Path, width: int, dark: bool, background: str
) -> None:
    # A frame, since a headless window is at least 500 wide.
    inner = page(summary_of(code=0.9, chat=0.5), costs(0.1))
    file, shot = tmp_path / "page.html", tmp_path / "page.png"
    file.write_text(FRAME.format(width=width, page=html.escape(inner)), encoding="utf-8")
    args = [
        *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *(f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,3000"),
        *("--dump-dom", f"--screenshot={shot}", file.as_uri()),
        *(["--force-dark-mode"] if dark else []),
    ]
    dom = subprocess.run(args, capture_output=True, check=True, timeout=120).stdout.decode()
    size = re.search(r"<title>(\d+),(\d+)</title>", dom)
    assert size is not None
    assert int(size[1]) == width, "something is wider than the page"
    assert 1000 < int(size[2]) < 6000
    pixels = np.rint(255 * image.imread(shot)[:, :width, :3]).astype(int)
    assert (pixels[2, 2] == _rgb(background)).all()
    near_blue = np.abs(pixels - _rgb(BLUE)).sum(axis=2) < 12
    rows = np.flatnonzero(near_blue.any(axis=1))
    assert near_blue.sum() > 500, "no curves"
    assert rows.max() - rows.min() > 500, "all plots at one place"


def _rgb(color: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(color[1:]))

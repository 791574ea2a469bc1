"""Everything that doctor does with a pair, in order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dflash2._native import core
from dflash2.doctor import bands, lossless, passages, probes
from dflash2.doctor.finding import Finding, fault
from dflash2.doctor.gguf_file import GgufFile
from dflash2.doctor.lossless import Losslessness
from dflash2.doctor.passages import Passage
from dflash2.doctor.probes import Probe
from dflash2.doctor.static_checks import static_checks
from dflash2.doctor.trial import Bench, Comparison, Trial, compare
from dflash2.doctor.variants import SELECTOR_OFF, Variant, taps_of, variants
from dflash2.engine import Engine
from dflash2.loader import open_models
from dflash2.replay import read

Progress = Callable[[str, float], None]  # what is done now, and the share that is done


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How thorough an examination is.

    Args:
        n_passages, n_tokens: text that the target writes, and tokens of each piece.
        screens: passages of the first looks at a variant; one that is clearly worse ends there.
        stride: tokens from one block to the next.
        n_lossless: passages that are generated again with drafting.
        topics: of the variants to try; None: all.
    """

    n_passages: int = 8
    n_tokens: int = 64
    screens: tuple[int, ...] = (1, 3)
    stride: int = 4
    n_lossless: int = 3
    topics: frozenset[str] | None = None
    n_threads: int | None = None
    n_gpu_layers: int = 0
    draft_device: str | None = None


@dataclass(frozen=True)
class Tried:
    variant: Variant
    comparison: Comparison
    is_better: bool


@dataclass(frozen=True)
class Examination:
    """What was found. Healthy: no finding is a fault."""

    target: str
    draft: str
    n_passages: int
    top_k: int
    trial: Trial
    unary: Trial | None  # with the selector off
    tried: list[Tried]
    probes: list[Probe]
    losslessness: Losslessness
    findings: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        return not any(f.severity == "fault" for f in self.findings)


def examine(
    target: Path,
    draft: Path,
    *,
    text: str | None = None,
    settings: Settings | None = None,
    progress: Progress = lambda what, share: None,
) -> Examination:
    """Looks for faults in a drafter.

    Args:
        text: pieces of it are continued by the target; None: built-in questions.

    Raises:
        As dflash2.load, and:
        ValueError: the text is too short.
        DFlash2Error: the target writes nothing that can be judged, or scipy is not installed.
    """
    s = settings or Settings()
    n_ctx = passages.N_PROMPT + s.n_tokens + 256
    tgt, drafter = open_models(
        target,
        draft,
        n_ctx=n_ctx,
        n_parallel=min(4, s.n_passages),
        n_threads=s.n_threads,
        n_gpu_layers=s.n_gpu_layers,
        draft_device=s.draft_device,
    )
    assert drafter is not None
    hparams = core.DraftModel(str(draft)).hparams
    file = GgufFile(draft)
    progress("reading the file", 0.0)
    findings = static_checks(file, hparams)

    progress("the target writes", 0.02)
    texts = _passages(tgt, text, s)
    tries = variants(file, hparams, tgt, max(len(p.tokens) for p in texts))
    tries = [v for v in tries if s.topics is None or v.topic in s.topics]
    progress("the target reads", 0.2)
    bench = _bench(tgt, texts, taps_of(tries, hparams), s)
    trial = bench.run(drafter)
    probed = probes.probe(bench, drafter, hparams["n_layer"])
    findings += probes.judge(probed) + bands.judge(trial)

    tried: list[Tried] = []
    if any(f.stage == "overflow" and f.severity == "fault" for f in findings):
        tries = []  # nothing that is compared with these drafts means anything
    with tempfile.TemporaryDirectory() as folder:
        ward = _Ward(bench, file, trial, Path(folder) / "variant.gguf", len(tries), s)
        for i, variant in enumerate(tries):
            progress(variant.name, 0.3 + 0.6 * i / len(tries))
            tried.append(ward.try_out(variant))
    findings += _named(tried)
    progress("losslessness", 0.9)
    checked = lossless.check(tgt, drafter, texts[: s.n_lossless])
    findings += checked.judge()
    progress("done", 1.0)
    return Examination(
        target=str(target),
        draft=str(draft),
        n_passages=len(texts),
        top_k=hparams["selector_top_k"],
        trial=trial,
        unary=ward.unary,
        tried=tried,
        probes=probed,
        losslessness=checked,
        findings=findings,
    )


def _passages(target: core.Target, text: str | None, s: Settings) -> list[Passage]:
    engine = Engine(target)
    if text is None:
        prompts = passages.default_prompts(engine, s.n_passages)
    else:
        prompts = passages.prompts_of(engine, text, s.n_passages)
    n_tokens = min(s.n_tokens * s.n_passages // len(prompts), s.n_tokens + 128)
    return passages.write_passages(engine, prompts, n_tokens)


def _bench(
    target: core.Target, texts: Sequence[Passage], layers: Sequence[int], s: Settings
) -> Bench:
    readings = [read(target, p.tokens, layers, start=len(p.prompt), temperature=1.0) for p in texts]
    return Bench(target, readings, layers, s.draft_device or "", s.stride)


class _Ward:
    """Where variants are tried. unary: the trial of the one without a selector."""

    def __init__(
        self, bench: Bench, file: GgufFile, base: Trial, path: Path, n: int, settings: Settings
    ) -> None:
        self.bench = bench
        self.file = file
        self.base = base
        self.path = path
        self.n = n
        self.screens = settings.screens
        self.unary: Trial | None = None

    def try_out(self, variant: Variant) -> Tried:
        self.file.write_copy(self.path, variant.edit())
        drafter = self.bench.drafter(self.path)
        is_unary = variant.name == SELECTOR_OFF
        for n_passages in () if is_unary else self.screens:
            if n_passages < len(self.bench.readings):
                comparison = compare(self.bench.run(drafter, n_passages), self.base)
                if comparison.is_worse:
                    return Tried(variant, comparison, False)
        trial = self.bench.run(drafter)
        if is_unary:
            self.unary = trial
        comparison = compare(trial, self.base)
        n_draft = trial.overlap.shape[1]
        return Tried(variant, comparison, comparison.is_better(self.n, n_draft))


def _named(tried: Sequence[Tried]) -> list[Finding]:
    """The variant that gains most names the fault; others that gain are its evidence."""
    better = sorted((t for t in tried if t.is_better), key=lambda t: -t.comparison.gain)
    if not better:
        return []
    best, others = better[0], better[1:]
    c = best.comparison
    evidence = (
        f"{best.variant.name}: {c.gain:+.2f} tokens accepted per sampled draft, "
        f"{c.length_gain:+.2f} accept length at temperature 0, p = {c.p:.1g} over {c.n} blocks"
    )
    if others:
        also = ", ".join(f"{t.variant.name} ({t.comparison.gain:+.2f})" for t in others[:3])
        evidence += f"; better as well: {also}"
    return [fault(best.variant.topic, best.variant.fault, evidence)]

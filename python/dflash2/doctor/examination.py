"""Everything that doctor does with a pair, in order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dflash2._native import core
from dflash2.doctor import bands, lossless, passages, probes
from dflash2.doctor.finding import Finding
from dflash2.doctor.gguf_file import GgufFile
from dflash2.doctor.lossless import Losslessness
from dflash2.doctor.probes import Probe
from dflash2.doctor.reference import compare_with
from dflash2.doctor.reference_graph import compare_graph, has_torch
from dflash2.doctor.static_checks import static_checks
from dflash2.doctor.trial import Bench, Trial, require_scipy
from dflash2.doctor.tryout import Room, Tried, Tryout, named, needs_length
from dflash2.doctor.variants import rope_base, taps_of, variants
from dflash2.engine import Engine
from dflash2.loader import open_models
from dflash2.pairing import DraftFacts, TargetFacts, check_pair
from dflash2.replay import read

CTX_STEP = 256  # libllama rounds contexts to it

Progress = Callable[[str, float], None]  # what is done now, and the share that is done


def quiet(what: str, share: float) -> None:
    """Shows no progress."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How thorough an examination is.

    Args:
        n_passages, n_tokens: text that the target writes, and tokens of each piece.
        stride: tokens from one block to the next.
        n_long, n_long_judged: tokens of the text for windows, and of its end that is judged.
        n_lossless: passages that are generated again with drafting.
        topics: of the variants to try; None: all.
    """

    n_passages: int = 8
    n_tokens: int = 64
    stride: int = 3
    n_long: int = 1100
    n_long_judged: int = 200
    n_lossless: int = 3
    topics: frozenset[str] | None = None
    n_threads: int | None = None
    n_gpu_layers: int = 0
    draft_device: str | None = None


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


class Doctor:
    """Holds a target and text that it wrote, and examines drafters for it.

    Args:
        draft: the drafter for which the target is set up; others must have its block size.
        text: pieces of it are continued by the target; None: built-in questions.

    Raises:
        As dflash2.load, and:
        ValueError: the text is too short.
        DFlash2Error: the target writes nothing that can be judged, or scipy is not installed.
    """

    def __init__(
        self,
        target: Path,
        draft: Path,
        *,
        text: str | None = None,
        settings: Settings | None = None,
        progress: Progress = quiet,
    ) -> None:
        self.settings = s = settings or Settings()
        require_scipy()
        progress("loading", 0.0)
        self.target, _ = open_models(
            target,
            draft,
            n_ctx=-(-max(s.n_long, passages.N_PROMPT + s.n_tokens + 160) // CTX_STEP) * CTX_STEP,
            n_parallel=min(4, s.n_passages),
            n_threads=s.n_threads,
            n_gpu_layers=s.n_gpu_layers,
            draft_device=s.draft_device,
        )
        self.device = s.draft_device or (self.target.head_device if s.n_gpu_layers else "")
        engine = Engine(self.target)
        if text is None:
            prompts = passages.default_prompts(engine, s.n_passages)
        else:
            prompts = passages.prompts_of(engine, text, s.n_passages)
        self.long = passages.long_text(engine, text, s.n_long)
        progress("the target writes", 0.02)
        n_tokens = min(s.n_tokens * s.n_passages // len(prompts), s.n_tokens + 128)
        self.texts = passages.write_passages(engine, prompts, n_tokens)
        self._benches: tuple[Bench, Bench] | None = None

    def examine(
        self, draft: Path, *, reference: Path | None = None, progress: Progress = quiet
    ) -> Examination:
        """Looks for faults in a drafter. Errors as for the class.

        Args:
            reference: folder of the checkpoint that the drafter was converted from.
        """
        s = self.settings
        model = core.DraftModel(str(draft), self.device)
        check_pair(DraftFacts.of(model), TargetFacts.of(self.target))
        drafter = core.GraphDrafter(model, self.target, n_threads=self.target.n_threads)
        hparams = model.hparams
        file = GgufFile(draft)
        findings = static_checks(file, hparams, rope_base(self.target))
        if reference is not None:
            progress("comparing with the checkpoint", 0.12)
            findings += compare_with(reference, file, hparams)
        tries = variants(file, hparams, self.target, len(self.long))
        tries = [v for v in tries if s.topics is None or v.topic in s.topics]

        progress("the target reads", 0.15)
        short, long = self.benches(taps_of(tries, hparams))
        trial = short.run(drafter, s.stride)
        if reference is not None and has_torch():
            progress("comparing with torch", 0.32)
            findings += compare_graph(reference, file, hparams, short, drafter)
        probed = probes.probe(short, drafter, hparams["n_layer"])
        findings += probes.judge(probed) + bands.judge(trial)
        if any(f.stage == "overflow" and f.severity == "fault" for f in findings):
            tries = []  # nothing that is compared with these drafts means anything

        tried: list[Tried] = []
        with tempfile.TemporaryDirectory() as folder:
            tryout = Tryout(file, Path(folder) / "variant.gguf", len(tries), s.stride)
            near = Room(short, trial)
            far = Room(long, long.run(drafter, s.stride)) if any(map(needs_length, tries)) else near
            for i, variant in enumerate(tries):
                progress(variant.name, 0.35 + 0.55 * i / len(tries))
                tried.append(tryout.of(variant, far if needs_length(variant) else near))
        findings += named(tried)
        progress("losslessness", 0.9)
        checked = lossless.check(self.target, drafter, self.texts[: s.n_lossless])
        findings += checked.judge()
        progress("done", 1.0)
        return Examination(
            target=self.target.path,
            draft=str(draft),
            n_passages=len(self.texts),
            top_k=hparams["selector_top_k"],
            trial=trial,
            unary=tryout.unary,
            tried=tried,
            probes=probed,
            losslessness=checked,
            findings=findings,
        )

    def benches(self, layers: Sequence[int]) -> tuple[Bench, Bench]:
        """The passages, and the long text; read anew only when layers are missing."""
        known = self._benches[0].layers if self._benches else []
        if self._benches is None or not set(layers) <= set(known):
            wanted = sorted({*layers, *known})
            start = max(1, len(self.long) - self.settings.n_long_judged)
            texts = [(p.tokens, len(p.prompt)) for p in self.texts]
            self._benches = (
                self._bench(texts, wanted),
                self._bench([(self.long, start)], wanted),
            )
        return self._benches

    def _bench(self, texts: Sequence[tuple[list[int], int]], layers: Sequence[int]) -> Bench:
        readings = [
            read(self.target, tokens, layers, start=start, temperature=1.0)
            for tokens, start in texts
        ]
        return Bench(self.target, readings, layers, self.device)

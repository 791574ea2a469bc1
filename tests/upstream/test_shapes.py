"""The synthetic models of real shapes: sizes of the real ones, and both engines load them."""

from __future__ import annotations

from pathlib import Path

import dflash2
import make_shapes
import pytest
from dflash2.upstream.command import XLLAMACPP, server_flags
from dflash2.upstream.process import ServerProcess
from hf_config import parse_config
from make_checkpoints import QWEN38_27B

PROMPT = list(range(300, 340))


@pytest.fixture(scope="module", params=sorted(make_shapes.TARGET_TYPES))
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shapes") / "target.gguf"
    return make_shapes.make_target(path, request.param, make_shapes.TINY)


@pytest.fixture(scope="module", params=[8, 16])
def draft(request: pytest.FixtureRequest, target: Path) -> Path:
    path = target.with_name(f"draft-{request.param}.gguf")
    return make_shapes.make_drafter(path, target, "q4_k_m", request.param)


def test_engine_runs_every_type_and_block(target: Path, draft: Path) -> None:
    n_max = int(draft.stem.removeprefix("draft-")) - 1
    with dflash2.load(target, draft, n_ctx=128, n_threads=1, spec_draft_n_max=15) as engine:
        params = dflash2.SamplingParams(max_tokens=20, ignore_eos=True)
        answer = engine.generate(PROMPT, params, spec_draft_n_max=n_max)
        plain = engine.generate(PROMPT, params, spec_draft_n_max=0)
    assert answer.stats.num_draft_tokens >= n_max
    assert len(set(plain.tokens)) > 1, "the target repeats one token"
    assert answer.tokens[0] == plain.tokens[0]


def test_upstream_runs_them(tmp_path: Path) -> None:
    target = make_shapes.make_target(tmp_path / "target.gguf", "q4_k", make_shapes.TINY)
    draft = make_shapes.make_drafter(tmp_path / "draft.gguf", target)
    flags = server_flags(target, draft, n_draft_max=7, n_ctx=128, n_threads=1)
    with ServerProcess(XLLAMACPP, flags) as server:
        server.complete(PROMPT, 8, temperature=0.0)
        assert server.counters().num_drafts > 0


def test_real_shapes_have_the_sizes_of_the_real_files() -> None:
    """The target's as planned; the drafter's as published: 1.138 GB, 6 MB of it vocabulary."""
    target = make_shapes.target_tensors(make_shapes.REAL, "q4_k")
    assert sum(t.n_bytes for t in target) == pytest.approx(13.65e9, rel=0.01)
    draft = make_shapes.drafter_tensors(parse_config(QWEN38_27B), "q4_k_m")
    assert len(draft) == 81
    assert sum(t.n_bytes for t in draft) == pytest.approx(1.132e9, rel=0.001)

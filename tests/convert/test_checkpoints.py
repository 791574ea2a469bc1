"""A synthetic checkpoint of every layout converts and loads; what no engine runs is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from check_checkpoints import drafts_in_server
from convert_error import ConvertError
from dflash2._native import core
from dflash2.cli.inspect import pair_problems
from dflash2.errors import ModelFormatError
from dflash2.gguf_info import GgufInfo
from drafter_convert import convert
from hf_config import parse_config
from hf_weights import read_checkpoint
from make_checkpoints import LAYOUTS, REFUSED, make_checkpoint, make_real_checkpoint, make_target


@pytest.fixture(scope="module")
def big_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target of every synthetic checkpoint, with weights."""
    return make_target(tmp_path_factory.mktemp("target"))


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_converts_and_loads(name: str, big_target: Path, tmp_path: Path) -> None:
    source = make_checkpoint(name, tmp_path)
    draft = convert(source, big_target, outtype="q8_0", outfile=tmp_path / "x.gguf").outfile
    info = GgufInfo(draft)
    assert info.family == ("DFlash 1" if name.startswith("dflash1") else "DFlash 2")
    if LAYOUTS[name]().engine:
        model = core.DraftModel(str(draft))
        assert model.hparams["n_embd"] == 256
        assert model.size_bytes > 0
    else:
        with pytest.raises(ModelFormatError):
            core.DraftModel(str(draft))
    if info.family == "DFlash 1":
        assert pair_problems(info, GgufInfo(big_target)) == []


# an own head and taps beyond the usual five; sinks and a value scale
@pytest.mark.parametrize("name", ["dflash2-glm-9-taps", "dflash1-mimo"])
def test_upstreams_server_drafts_with_the_file(name: str, big_target: Path, tmp_path: Path) -> None:
    source = make_checkpoint(name, tmp_path)
    draft = convert(source, big_target, outtype="q4_k_m", outfile=tmp_path / "x.gguf").outfile
    assert drafts_in_server(big_target, draft)


@pytest.mark.parametrize("name", REFUSED)
def test_layout_that_no_engine_runs_is_refused(name: str) -> None:
    with pytest.raises(ConvertError, match=r"no engine here runs it|convert_hf_to_gguf|no such"):
        parse_config(REFUSED[name])


def test_real_shapes_of_qwen38_27b(tmp_path: Path) -> None:
    folder = make_real_checkpoint(tmp_path, zeros=True)
    tensors = read_checkpoint(folder)
    assert len(tensors) == 81
    assert tensors["fc.weight"].shape == (5120, 25600)
    assert tensors["candidate_selector.successor_codebook"].shape == (248320, 256)
    assert sum(math.prod(t.shape) for t in tensors.values()) == 1_924_404_480
    assert (folder / "model.safetensors").stat().st_blocks * 512 < 1 << 20

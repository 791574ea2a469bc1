"""dflash2 inspect: what loads a file, whether its metadata is current, what it will take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_drafter
from dflash2.cli.main import main
from dflash2.gguf_info import GgufInfo
from dflash2.load_check import load_error
from dflash2.loader import plan_memory
from drafter_convert import convert
from make_tiny_models import make_tiny_pair
from old_files import FORK_TENSORS, drop, rewrite, to_fork
from soak import SIZES

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def mrope(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with M-RoPE."""
    folder = tmp_path_factory.mktemp("mrope")
    return tiny_drafter.write_target(folder / "t.gguf", arch="qwen2vl", mrope=True)


def made(folder: Path, cfg: dict[str, Any], target: Path) -> Path:
    drafter = tiny_drafter.write_drafter(folder / "d", cfg)
    return convert(drafter, target, outtype="bf16", outfile=folder / "new.gguf").outfile


def inspect(capsys: Capture, *args: object) -> tuple[int, dict[str, Any]]:
    code = main(["inspect", *map(str, args), "--json", "--no-tensors"])
    return code, json.loads(capsys.readouterr().out)


def test_builds_and_engine_that_load_each_family(
    mrope: Path, tmp_path: Path, capsys: Capture
) -> None:
    two = made(tmp_path / "2", tiny_drafter.CONFIG, mrope)
    one = made(tmp_path / "1", tiny_drafter.dflash1(), mrope)
    fork = rewrite(one, tmp_path / "f.gguf", to_fork("dflash-draft"), rename=FORK_TENSORS)
    for path, kind, llama_cpp, ours in (
        (two, "DFlash 2 drafter", "llama.cpp b10658 or later", True),
        (one, "DFlash 1 drafter", "builds before b10658 included", False),
        (fork, "drafter in the schema of a fork", "no upstream llama.cpp", False),
        (mrope, "target model, architecture qwen2vl", "", True),
    ):
        code, result = inspect(capsys, path)
        assert code == 0
        assert result["kind"].startswith(kind)
        assert llama_cpp in result["llama_cpp"]
        assert result["dflash2"] is ours
        assert ("memory" in result) == (path == two)


def test_file_from_before_rope_sections_is_old_and_still_fits(
    mrope: Path, tmp_path: Path, capsys: Capture
) -> None:
    new = made(tmp_path, tiny_drafter.CONFIG, mrope)
    old = rewrite(new, tmp_path / "old.gguf", drop("dflash.rope.dimension_sections"))
    code, result = inspect(capsys, new, "--target", mrope)
    assert (code, result["era"]["current"]) == (0, True)
    code, result = inspect(capsys, old, "--target", mrope)
    assert (code, result["pair"]["fits"], result["era"]["current"]) == (0, True, False)
    assert result["era"]["migrate"][0].startswith("dflash.rope.dimension_sections = [32, 0, 0, 0]")
    assert main(["inspect", str(old), "--target", str(mrope)]) == 0
    assert "metadata  old; dflash2 migrate mends it:" in capsys.readouterr().out


def test_pair_is_judged_for_files_that_only_llama_cpp_runs(
    mrope: Path, tmp_path: Path, capsys: Capture
) -> None:
    one = made(tmp_path, tiny_drafter.dflash1(), mrope)
    code, result = inspect(capsys, one, "--target", mrope)
    assert (code, result["pair"]["fits"]) == (0, True)
    other = tiny_drafter.write_target(tmp_path / "o.gguf", n_embd=512, n_vocab=97)
    code, result = inspect(capsys, one, "--target", other)
    assert code == 1
    reasons = " ".join(result["pair"]["reasons"])
    assert "hidden size: the target has 512, the drafter expects 256" in reasons
    assert "vocabulary size: the target has 97, the drafter expects 96" in reasons
    fork = rewrite(one, tmp_path / "f.gguf", to_fork("dspark"), rename=FORK_TENSORS)
    code, result = inspect(capsys, fork, "--target", mrope)
    assert code == 1
    assert "dflash2 migrate" in result["pair"]["reasons"][0]


def test_file_that_llama_cpp_does_not_load_does_not_fit(
    mrope: Path, tmp_path: Path, capsys: Capture
) -> None:
    one = made(tmp_path, tiny_drafter.dflash1(), mrope)
    broken = rewrite(one, tmp_path / "x.gguf", lambda f: None, without="blk.1.ffn_up.weight")
    code, result = inspect(capsys, broken, "--target", mrope)
    assert code == 1
    assert "blk.1.ffn_up.weight" in result["pair"]["reasons"][0]


def test_file_on_which_libllama_aborts_is_reported_and_not_fatal(
    mrope: Path, tmp_path: Path
) -> None:
    one = made(tmp_path, tiny_drafter.dflash1(), mrope)

    def change(fields: Any) -> None:
        _, kind, item = fields["dflash.block_count"]
        fields["dflash.block_count"] = (2**31, kind, item)

    assert load_error(one) == ""
    assert load_error(rewrite(one, tmp_path / "x.gguf", change)) != ""
    assert load_error(tmp_path / "none.gguf") != ""


def test_memory_plan_of_a_drafter_alone(target: Path, tmp_path: Path, capsys: Capture) -> None:
    cfg = tiny_drafter.config(layer_types=["sliding_attention", "full_attention"])
    path = made(tmp_path, cfg, target)
    code, result = inspect(capsys, path, "-c", 8192, "-np", 3)
    assert code == 0
    row = 2 * 64 * 2 * 2  # K and V, head size, heads, F16
    feature = 256 * len(GgufInfo(path).items("dflash.target_layers")) * 4
    uses = {use["what"]: use["bytes"] for use in result["memory"]["uses"]}
    assert uses == {
        "draft weights": sum(t.n_bytes for t in GgufInfo(path).tensors),
        "draft K/V": (256 + 8448) * row * 3,  # 127 + 64 + 8 + 1 and 8192 + 8 + 1 cells
        "hidden states": (64 * 3 + 64 + 1) * feature,
    }
    assert result["memory"]["by_device"] == {"CPU": sum(uses.values())}
    assert inspect(capsys, path, "-m", target)[1]["memory"]["uses"], "libllama refuses the target"


def test_memory_plan_of_a_pair(tmp_path: Path, capsys: Capture) -> None:
    files = make_tiny_pair(tmp_path, **SIZES)
    options = ("-c", 512, "-np", 3, "-b", 64)
    memory = inspect(capsys, files[1], "-m", files[0], *options)[1]["memory"]
    plan = plan_memory(*files, n_ctx=512, n_parallel=3, n_batch=64)
    assert {(use["what"], use["bytes"]) for use in memory["uses"]} == {
        (use.what, use.bytes) for use in plan if use.bytes
    }
    assert memory["free"]["CPU"] > memory["by_device"]["CPU"]
    main(["inspect", str(files[1]), "-m", str(files[0]), "--no-tensors"])
    text = capsys.readouterr().out
    for part in ("target weights", "CPU, mapped", "in all"):
        assert part in text


def test_impossible_sizes_are_usage_errors(target: Path, capsys: Capture) -> None:
    for option in ("-c", "-np", "-b"):
        with pytest.raises(SystemExit) as raised:
            main(["inspect", str(target), option, "0"])
        assert raised.value.code == 2
        assert "expected 1 or more" in capsys.readouterr().err

"""dflash2 migrate: metadata mended, tensor data untouched; whatever else is wrong is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny_drafter
from dflash2.cli.main import main
from dflash2.errors import IncompatibleModelsError, ModelFormatError
from dflash2.migrate import migrate
from drafter_convert import convert
from old_files import FORK_TENSORS, Fields, Kind, drop, rewrite, to_fork

SECTIONS = "dflash.rope.dimension_sections"
SCALE = "dflash.embedding_scale"


def read(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    reader = gguf.GGUFReader(path)
    fields = {
        k: (f.types, f.contents()) for k, f in reader.fields.items() if not k.startswith("GGUF.")
    }
    return fields, {t.name: np.asarray(t.data).tobytes() for t in reader.tensors}


@pytest.fixture(scope="module")
def mrope(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with M-RoPE."""
    folder = tmp_path_factory.mktemp("mrope")
    return tiny_drafter.write_target(folder / "t.gguf", arch="qwen2vl", mrope=True)


@pytest.fixture(scope="module")
def current(mrope: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter of the M-RoPE target as it is converted today."""
    folder = tmp_path_factory.mktemp("current")
    drafter = tiny_drafter.write_drafter(folder / "d", tiny_drafter.CONFIG)
    out = folder / "dflash-t.gguf"
    return convert(drafter, mrope, outtype="q4_k_m", outfile=out, threads=1).outfile


@pytest.fixture(scope="module")
def dflash1(mrope: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DFlash 1 drafter of the M-RoPE target as it is converted today."""
    folder = tmp_path_factory.mktemp("dflash1")
    cfg = tiny_drafter.dflash1()
    drafter = tiny_drafter.write_drafter(folder / "d", cfg)
    return convert(drafter, mrope, outtype="f16", outfile=folder / "one.gguf").outfile


def test_rope_sections_are_added_and_nothing_else_changes(
    current: Path, mrope: Path, tmp_path: Path
) -> None:
    old = rewrite(current, tmp_path / "old.gguf", drop(SECTIONS))
    done = migrate(old, mrope)
    assert done.outfile == tmp_path / "old-migrated.gguf"
    assert len(done.changes) == 1
    assert done.changes[0].startswith(f"{SECTIONS} = [32, 0, 0, 0]")
    (before, tensors), (after, same) = read(old), read(done.outfile)
    assert same == tensors
    assert after.pop(SECTIONS) == ([Kind.ARRAY, Kind.INT32], [32, 0, 0, 0])
    assert after == before
    assert {p.name for p in tmp_path.iterdir()} == {"old.gguf", "old-migrated.gguf"}
    assert migrate(done.outfile, mrope).changes == ()


def test_current_file_has_nothing_to_mend(
    current: Path, mrope: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.gguf"
    args = ["migrate", str(current), "--target", str(mrope), "--outfile", str(out)]
    assert main(args) == 0
    assert capsys.readouterr().out == f"{current}: nothing to mend\n"
    assert not out.exists()
    assert main([*args, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["changes"], result["outfile"]) == ([], None)


def test_gemma_gets_its_embedding_scale(tmp_path: Path) -> None:
    target = tiny_drafter.write_target(tmp_path / "t.gguf", arch="gemma3")
    drafter = tiny_drafter.write_drafter(tmp_path / "d", tiny_drafter.CONFIG)
    new = convert(drafter, target, outtype="bf16", outfile=tmp_path / "new.gguf").outfile
    old = rewrite(new, tmp_path / "old.gguf", drop(SCALE))
    done = migrate(old, target, outfile=tmp_path / "x.gguf")
    assert done.outfile is not None
    fields, tensors = read(done.outfile)
    assert (fields, tensors) == read(new)
    assert fields[SCALE][1] == 16.0


@pytest.mark.parametrize("arch", ["dflash-draft", "dspark", "gemma4-dflash-draft"])
def test_fork_schema_becomes_upstreams(
    arch: str, dflash1: Path, mrope: Path, tmp_path: Path
) -> None:
    old = rewrite(dflash1, tmp_path / "old.gguf", to_fork(arch), rename=FORK_TENSORS)
    done = migrate(old, mrope, outfile=tmp_path / "x.gguf")
    assert done.outfile is not None
    assert done.changes[0].startswith(f"general.architecture = dflash, was {arch}")
    assert any("target_layers = [2, 4, 5]" in change for change in done.changes)
    fields, tensors = read(done.outfile)
    wanted, same = read(dflash1)
    assert tensors == same
    assert fields == {k: v for k, v in wanted.items() if not k.startswith("dflash2.")}


def test_fork_without_a_tokenizer_gets_the_targets(
    dflash1: Path, mrope: Path, tmp_path: Path
) -> None:
    def change(fields: Fields) -> None:
        to_fork("dflash-draft")(fields)
        for key in [key for key in fields if key.startswith("tokenizer.")]:
            del fields[key]

    old = rewrite(dflash1, tmp_path / "old.gguf", change, rename=FORK_TENSORS)
    done = migrate(old, mrope, outfile=tmp_path / "x.gguf")
    assert done.outfile is not None
    fields = read(done.outfile)[0]
    wanted = read(dflash1)[0]
    assert {k: v for k, v in fields.items() if k.startswith("tokenizer.")} == {
        k: v for k, v in wanted.items() if k.startswith("tokenizer.")
    }


def other_mask(fields: Fields) -> None:
    to_fork("dflash-draft")(fields)
    fields["tokenizer.ggml.mask_token_id"] = (7, Kind.UINT32, None)


REFUSED: dict[str, tuple[Callable[[Fields], None], dict[str, Any], str]] = {
    "no mask token": (drop("tokenizer.ggml.mask_token_id"), {}, "mask_token_id: expected a value"),
    "no taps": (drop("dflash.target_layers"), {}, "dflash.target_layers: expected a value"),
    "no block size": (drop("dflash.block_size"), {}, "dflash.block_size: expected a value"),
    "two mask tokens": (other_mask, {}, "mask_token_id: expected one value, got two"),
    "missing tensor": (
        drop(SECTIONS),
        {"without": "blk.1.ffn_up.weight"},
        "not mended by metadata alone: .*blk.1.ffn_up.weight",
    ),
    "names of another fork": (
        to_fork("dflash-draft"),
        {"rename": {"fc.weight": "dfc.weight"}},
        "not mended by metadata alone",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_metadata_cannot_mend_is_refused_by_name(
    case: str, dflash1: Path, mrope: Path, tmp_path: Path
) -> None:
    change, options, message = REFUSED[case]
    old = rewrite(dflash1, tmp_path / "old.gguf", change, **options)
    with pytest.raises(ModelFormatError, match=message) as raised:
        migrate(old, mrope)
    assert str(raised.value).startswith(str(old))
    assert "\n" not in str(raised.value)
    assert [p.name for p in tmp_path.iterdir()] == ["old.gguf"]


def test_other_files_are_refused(current: Path, mrope: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="expected a drafter, got a target model"):
        migrate(mrope, mrope)
    with pytest.raises(ModelFormatError, match="expected a target model, got a DFlash 2 drafter"):
        migrate(current, current)
    old = rewrite(current, tmp_path / "old.gguf", drop(SECTIONS))
    other = tiny_drafter.write_target(tmp_path / "t.gguf", arch="qwen2vl", mrope=True, n_layer=5)
    with pytest.raises(IncompatibleModelsError, match="layers: the target has 5"):
        migrate(old, other)
    old.write_bytes(old.read_bytes()[:-100])
    with pytest.raises(ModelFormatError, match="truncated"):
        migrate(old, mrope)
    assert {p.name for p in tmp_path.iterdir()} == {"old.gguf", "t.gguf"}


def test_outfile_is_kept_without_force_and_may_be_the_old_file_with_it(
    current: Path, mrope: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = rewrite(current, tmp_path / "old.gguf", drop(SECTIONS))
    args = ["migrate", str(old), "--target", str(mrope), "--outfile", str(old)]
    before = old.read_bytes()
    assert main(args) == 1
    assert "exists; pass --force" in capsys.readouterr().err
    assert old.read_bytes() == before
    assert main([*args, "--force"]) == 0
    assert "wrote and verified" in capsys.readouterr().out
    assert SECTIONS in read(old)[0]
    assert read(old)[1] == read(current)[1]


def test_a_changed_byte_in_the_copy_is_found(
    current: Path, mrope: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dflash2.migrate

    def flip(f: Any) -> None:
        f.seek(-40, 2)
        f.write(b"\x55")
        f.flush()

    monkeypatch.setattr(dflash2.migrate, "sync", flip)
    old = rewrite(current, tmp_path / "old.gguf", drop(SECTIONS))
    with pytest.raises(OSError, match="expected tensor data"):
        migrate(old, mrope)
    assert [p.name for p in tmp_path.iterdir()] == ["old.gguf"]

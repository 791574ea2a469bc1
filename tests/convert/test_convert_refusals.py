"""Every refusal: one line that names the thing, and nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dflash2_to_gguf
import gguf_emit
import numpy as np
import pytest
import tiny_drafter
from convert_error import ConvertError
from drafter_convert import convert

Tensors = dict[str, Any]


def drop(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.pop(name)


def put(name: str, value: Any) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: value})


def poke(name: str, bits: int) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name].flat[7] = bits

    return change


BAD_TENSORS = {
    "missing tensor": (drop("fc.weight"), "expected a tensor for fc.weight, got none"),
    "missing layer tensor": (
        drop("layers.1.self_attn.q_norm.weight"),
        "expected a tensor for blk.1.attn_q_norm.weight",
    ),
    "missing codebook": (
        drop("candidate_selector.successor_codebook"),
        "expected a tensor for selector_successor.weight",
    ),
    "extra tensor": (put("layers.0.self_attn.g_proj.weight", np.ones(4, np.uint16)), "g_proj"),
    "extra layer": (put("layers.2.input_layernorm.weight", np.ones(256, np.uint16)), "layers.2"),
    "same tensor twice": (put("model.norm.weight", np.ones(256, np.uint16)), "the same tensor as"),
    "wrong shape": (
        put("fc.weight", np.ones((256, 512), np.uint16)),
        r"fc.weight: expected shape \[256, 768\], got \[256, 512\]",
    ),
    "transposed": (
        put("layers.0.mlp.up_proj.weight", np.ones((256, 512), np.uint16)),
        r"up_proj.weight: expected shape \[512, 256\]",
    ),
    "integer weights": (
        put("norm.weight", np.ones(256, np.int64)),
        "norm.weight: expected BF16, F16, F32, got I64",
    ),
    "NaN": (poke("fc.weight", 0x7FC0), "fc.weight: expected finite weights, got NaN"),
    "infinity": (poke("layers.1.mlp.up_proj.weight", 0xFF80), "up_proj.weight: expected finite"),
}


@pytest.mark.parametrize("outtype", ["bf16", "q8_0"])
@pytest.mark.parametrize("case", BAD_TENSORS)
def test_bad_tensors(case: str, outtype: str, target: Path, tmp_path: Path) -> None:
    change, message = BAD_TENSORS[case]
    tensors = tiny_drafter.weights(tiny_drafter.CONFIG)
    change(tensors)
    drafter = tiny_drafter.write_drafter(tmp_path / "d", tiny_drafter.CONFIG, tensors)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ConvertError, match=message) as raised:
        convert(drafter, target, outtype=outtype, outfile=out)
    assert "\n" not in str(raised.value)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_embd": 512}, r"hidden_size: expected 512 as in t.gguf, got 256"),
        ({"n_vocab": 97}, r"vocab_size: expected 97 as in t.gguf, got 96"),
        ({"n_layer": 4}, r"target_layer_ids: expected layers below 4 as in t.gguf, got 4"),
    ],
)
def test_mismatched_target(
    changes: dict[str, int], message: str, drafter: Path, tmp_path: Path
) -> None:
    target = tiny_drafter.write_target(tmp_path / "t.gguf", **changes)  # type: ignore[arg-type]
    with pytest.raises(ConvertError, match=message):
        convert(drafter, target, outfile=tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str]:
    """Exit code and stderr of the command."""
    code = dflash2_to_gguf.main([str(a) for a in args])
    return code, capsys.readouterr().err


def test_drafter_paths(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for drafter in (tmp_path / "none", empty, target, loop):
        code, err = run(capsys, drafter, "--target", target, "--outfile", tmp_path / "x.gguf")
        assert code == 1
        assert err.startswith("error: ")
        assert err.count("\n") == 1


def test_target_paths(drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop, empty = tmp_path / "loop.gguf", tmp_path / "empty.gguf"
    loop.symlink_to(loop)
    empty.touch()
    for target in (tmp_path / "none.gguf", empty, loop, drafter / "model.safetensors"):
        code, err = run(capsys, drafter, "--target", target, "--outfile", tmp_path / "x.gguf")
        assert code == 1
        assert err.startswith(f"error: {target}")
        assert err.count("\n") == 1


def test_existing_file_is_kept_without_force(drafter: Path, target: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    out.write_text("mine")
    with pytest.raises(FileExistsError, match="exists; pass --force"):
        convert(drafter, target, outtype="bf16", outfile=out)
    assert out.read_text() == "mine"
    convert(drafter, target, outtype="bf16", outfile=out, force=True)
    assert out.read_bytes()[:4] == b"GGUF"
    assert [p.name for p in tmp_path.iterdir()] == ["x.gguf"]


def test_failed_overwrite_keeps_the_old_file(target: Path, tmp_path: Path) -> None:
    tensors = tiny_drafter.weights(tiny_drafter.CONFIG)
    poke("norm.weight", 0x7F80)(tensors)
    drafter = tiny_drafter.write_drafter(tmp_path / "d", tiny_drafter.CONFIG, tensors)
    out = tmp_path / "x.gguf"
    out.write_text("mine")
    with pytest.raises(ConvertError, match="expected finite weights"):
        convert(drafter, target, outtype="bf16", outfile=out, force=True)
    assert out.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d", "x.gguf"]


def test_unwritable_folder(
    drafter: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # asked of the system, because a superuser may write into a read-only folder
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="the folder is not writable; pass --outfile"):
        convert(drafter, target, outtype="bf16", outfile=tmp_path / "x.gguf")
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError, match="expected a folder to write into, found none"):
        convert(drafter, target, outtype="bf16", outfile=tmp_path / "none" / "x.gguf")
    assert list(tmp_path.iterdir()) == []


def test_full_disk(
    drafter: Path,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    encode, calls = gguf_emit.encode, []

    def encode_until_full(*args: Any) -> Any:
        calls.append(args)
        if len(calls) > 10:
            raise OSError(errno.ENOSPC, "No space left on device", "x.gguf")
        return encode(*args)

    monkeypatch.setattr(gguf_emit, "encode", encode_until_full)
    out = tmp_path / "x.gguf"
    code, err = run(capsys, drafter, "--target", target, "--outtype", "bf16", "--outfile", out)
    assert code == 1
    assert len(calls) > 10
    assert "No space left on device" in err
    assert list(tmp_path.iterdir()) == []


def test_too_small_a_disk_is_noticed_before_the_work(
    drafter: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(path: Any) -> Any:
        return shutil._ntuple_diskusage(1 << 20, 1 << 19, 1 << 19)  # type: ignore[attr-defined]

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(ConvertError, match=r": expected 2\.9 MB of free disk space, got 0\.5 MB"):
        convert(drafter, target, outtype="bf16", outfile=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threads", "0"], r"threads: expected 1 or more, got 0"),
        (["--threads", "-3"], r"threads: expected 1 or more, got -3"),
        (["--head-counts", "c.npy"], r"head_counts: expected head_rows with it, got none"),
        (["--head-rows", "8"], r"head_rows: expected head_counts with it, got none"),
        (["--head-rows", "8", "--head-counts", "c.npy"], r"c.npy: expected counts from 0 to"),
        (["--head-rows", "8", "--head-counts", "empty.npy"], r"empty.npy: expected 96 integers"),
        (["--pre-tokenizer", "gpt2"], r"pre_tokenizer: .*gguf: expected a Hugging Face folder"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    options: list[str],
    message: str,
    drafter: Path,
    target: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("c.npy", -np.arange(tiny_drafter.N_VOCAB))
    Path("empty.npy").touch()
    code, err = run(capsys, drafter, "--target", target, "--outfile", "x.gguf", *options)
    assert code == 1
    assert re.match(f"error: {message}", err)
    assert err.count("\n") == 1
    assert not Path("x.gguf").exists()


def test_an_input_is_never_overwritten(
    drafter: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link"
    link.symlink_to(drafter)
    for out in (target, drafter / "model.safetensors", link / "config.json"):
        before = out.read_bytes()
        code, err = run(capsys, drafter, "--target", target, "--outfile", out, "--force")
        assert (code, err) == (
            1,
            f"error: {out}: expected another outfile; the conversion reads this one\n",
        )
        assert out.read_bytes() == before


def test_a_device_is_never_replaced(
    drafter: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code, err = run(capsys, drafter, "--target", target, "--outfile", pipe, "--force")
    assert code == 1
    assert err.startswith(f"error: {pipe}: expected a file or a new name")
    assert pipe.is_fifo()


def test_a_byte_changed_on_disk_is_found_before_the_file_gets_its_name(
    drafter: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import drafter_convert

    def write_and_damage(f: Any, *args: Any, **kwargs: Any) -> None:
        gguf_emit.write_gguf(f, *args, **kwargs)
        f.seek(-64, os.SEEK_END)
        f.write(b"\x7f\x00")

    monkeypatch.setattr(drafter_convert, "write_gguf", write_and_damage)
    for outtype, message in (("bf16", "read other bytes"), ("q8_0", "expected q8_0 within")):
        with pytest.raises(ConvertError, match=f"blk.1.ffn_up.weight: {message}"):
            convert(drafter, target, outtype=outtype, outfile=tmp_path / "x.gguf")
    assert list(tmp_path.iterdir()) == []


def test_a_kill_half_way_leaves_nothing_under_the_final_name(
    drafter: Path, target: Path, tmp_path: Path
) -> None:
    # stops the writer after a few tensors, then never goes on
    script = (
        "import itertools, sys, time, gguf_emit, drafter_convert\n"
        "encode, calls = gguf_emit.encode, itertools.count()\n"
        "def stop(*args):\n"
        "    call = next(calls)\n"  # of several threads
        "    if call == 5:\n"
        "        print('half-way', flush=True)\n"
        "    if call >= 5:\n"
        "        time.sleep(60)\n"
        "    return encode(*args)\n"
        "gguf_emit.encode = stop\n"
        "drafter_convert.convert(*sys.argv[1:3], outtype='bf16', outfile=sys.argv[3])\n"
    )
    out = tmp_path / "x.gguf"
    path = os.pathsep.join(str(Path(m.__file__ or "").parent) for m in (gguf_emit,))
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(drafter), str(target), str(out)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"half-way\n"
    assert not out.exists()
    begin = time.monotonic()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert time.monotonic() - begin < 10
    assert not out.exists()
    convert(drafter, target, outtype="bf16", outfile=out)
    assert out.exists()


def test_unknown_outtype(drafter: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConvertError, match=r"outtype: expected one of f32, .*, got 'q9'"):
        convert(drafter, target, outtype="q9")
    with pytest.raises(SystemExit) as raised:
        dflash2_to_gguf.main([str(drafter), "--target", str(target), "--outtype", "q9"])
    assert raised.value.code == 2
    assert "invalid choice: 'q9'" in capsys.readouterr().err


def test_missing_package_says_how_to_install_it() -> None:
    script = "import sys; sys.modules['dflash2'] = None; import dflash2_to_gguf"
    environment = {**os.environ, "PYTHONPATH": str(Path(gguf_emit.__file__ or "").parent)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: needs the dflash2 package")
    assert "pip install" in done.stderr


def test_bad_config_json(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("", "[1]", "{", "\xff", "[" * 100_000, json.dumps({"architectures": [1]})):
        drafter = tiny_drafter.write_drafter(tmp_path / "d", tiny_drafter.CONFIG, {})
        (drafter / "config.json").write_bytes(text.encode("latin-1"))
        code, err = run(capsys, drafter, "--target", target, "--outfile", tmp_path / "x.gguf")
        assert code == 1
        assert err.startswith(f"error: {drafter / 'config.json'}")
        assert err.count("\n") == 1

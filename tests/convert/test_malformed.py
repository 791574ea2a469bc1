"""Malformed inputs by the command: exit code 1, one line that names the thing, no file left."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dflash2_to_gguf
import numpy as np
import pytest
import tiny_drafter
from test_imatrix import write_imatrix
from tiny_drafter import to_bf16, torch_file

Change = Callable[[Path], None]  # of a good checkpoint folder
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ROW = np.zeros(256, np.float32)


def config(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(tiny_drafter.config(**changes)))

    return change


def nested(**changes: Any) -> Change:
    return config(dflash_config=changes)


def config_text(data: bytes) -> Change:
    return lambda folder: (folder / "config.json").write_bytes(data) and None


def header(edit: Callable[[dict[str, Any]], None]) -> Change:
    """Edits the JSON header of the weights; the data stays."""

    def change(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        entries = json.loads(data[8 : 8 + size])
        edit(entries)
        text = json.dumps(entries).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])

    return change


def entry(name: str, **changes: Any) -> Change:
    return header(lambda entries: entries[name].update(changes))


def file(edit: Callable[[bytes], bytes]) -> Change:
    def change(folder: Path) -> None:
        (folder / WEIGHTS).write_bytes(edit((folder / WEIGHTS).read_bytes()))

    return change


def tensors(edit: Callable[[dict[str, Any]], None]) -> Change:
    """Writes the weights again, with other tensors."""

    def change(folder: Path) -> None:
        data: dict[str, Any] = dict(tiny_drafter.weights(tiny_drafter.CONFIG))
        edit(data)
        (folder / WEIGHTS).write_bytes(tiny_drafter.safetensors_bytes(data))

    return change


def put(name: str, value: Any) -> Change:
    return tensors(lambda data: data.update({name: value}))


def poke(name: str, bits: int) -> Change:
    return tensors(lambda data: data[name].flat.__setitem__(3, bits))


def duplicate_shard(folder: Path) -> None:
    shutil.copy(folder / WEIGHTS, folder / "model-00002.safetensors")


def weights_loop(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(folder / WEIGHTS)


def config_loop(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(folder / "config.json")


def index(weight_map: Any) -> Change:
    text = json.dumps({"weight_map": weight_map})
    return lambda folder: (folder / INDEX).write_text(text) and None


def index_loop(folder: Path) -> None:
    index({"fc.weight": "loop.safetensors"})(folder)
    (folder / "loop.safetensors").symlink_to(folder / "loop.safetensors")


def mask(data: bytes) -> Change:
    return lambda folder: (folder / "mask_embedding.pt").write_bytes(data) and None


def remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def header_text(text: bytes) -> Change:
    return file(lambda data: struct.pack("<Q", len(text)) + text)


CODE = b"cbuiltins\nexec\n(X\x0c\0\0\0raise OSErrortR"
DUPLICATE = b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{}}'
FC = "fc.weight"

# name -> (what is done to a good checkpoint, a word of the message)
CASES: dict[str, tuple[Change, str]] = {
    # config.json
    "no config": (remove("config.json"), "config.json"),
    "config is a loop": (config_loop, "config.json"),
    "empty config": (config_text(b""), "config.json"),
    "config is a list": (config_text(b"[]"), "config.json"),
    "config is cut": (config_text(b'{"architectures": ["DFl'), "config.json"),
    "config is not UTF-8": (config_text(b'{"a": "\xff"}'), "config.json"),
    "config nests deeply": (config_text(b"[" * 200_000), "config.json"),
    "unknown architecture": (config(architectures=["LlamaForCausalLM"]), "architectures"),
    "architectures is a name": (config(architectures="DFlash2DraftModel"), "architectures"),
    "no hidden size": (config(hidden_size=None), "hidden_size"),
    "no layers": (config(num_hidden_layers=None), "num_hidden_layers"),
    "negative layers": (config(num_hidden_layers=-1), "num_hidden_layers"),
    "a billion layers": (config(num_hidden_layers=10**9), "num_hidden_layers"),
    "head size is text": (config(head_dim="64"), "head_dim"),
    "odd head size": (config(head_dim=63), "head_dim"),
    "heads do not divide": (config(num_key_value_heads=3), "num_key_value_heads"),
    "no rope": (config(rope_parameters=None), "rope_theta"),
    "rope of another kind": (config(rope_parameters={"rope_theta": 1, "rope_type": "su"}), "rope"),
    "epsilon is infinite": (config(rms_norm_eps=1e999), "rms_norm_eps"),
    "epsilon is zero": (config(rms_norm_eps=0), "rms_norm_eps"),
    "no causal flag": (config(is_causal=None), "is_causal"),
    "causal is a number": (config(is_causal=0), "is_causal"),
    "one layer type missing": (config(layer_types=["sliding_attention"]), "layer_types"),
    "unknown layer type": (config(layer_types=["linear_attention"] * 2), "layer_types"),
    "no window": (config(sliding_window=None), "sliding_window"),
    "other activation": (config(hidden_act="gelu"), "hidden_act"),
    "attention bias": (config(attention_bias=True), "attention_bias"),
    "no mask token": (nested(mask_token_id=None), "mask_token_id"),
    "mask token outside the vocabulary": (nested(mask_token_id=96), "mask_token_id"),
    "negative mask token": (nested(mask_token_id=-1), "mask_token_id"),
    "no taps": (nested(target_layer_ids=None), "target_layer_ids"),
    "empty taps": (nested(target_layer_ids=[]), "target_layer_ids"),
    "taps outside the target": (nested(target_layer_ids=[1, 3, 6]), "target_layer_ids"),
    "negative tap": (nested(target_layer_ids=[-1, 3, 4]), "target_layer_ids"),
    "tap is text": (nested(target_layer_ids=["1", 3, 4]), "target_layer_ids"),
    "no block size": (nested(block_size=None), "block_size"),
    "block of one": (nested(block_size=1), "block_size"),
    "no selector rank": (nested(selector_rank=None), "selector_rank"),
    "no kernel size": (nested(conv_kernel_size=None), "conv_kernel_size"),
    "group does not divide": (nested(conv_group_size=7), "conv_group_size"),
    "lattice too wide": (nested(selector_top_k=16), "selector_top_k"),
    # safetensors
    "no weights": (remove(WEIGHTS), "safetensors"),
    "weights are a loop": (weights_loop, "safetensors"),
    "empty weights": (file(lambda data: b""), WEIGHTS),
    "seven bytes": (file(lambda data: data[:7]), WEIGHTS),
    "data cut": (file(lambda data: data[:-2]), WEIGHTS),
    "data too long": (file(lambda data: data + b"\0\0"), WEIGHTS),
    "header longer than the file": (file(lambda data: b"\xff" * 8 + data[8:]), WEIGHTS),
    "header is not JSON": (header_text(b"not json"), WEIGHTS),
    "header is a list": (header_text(b"[]"), WEIGHTS),
    "header is not UTF-8": (header_text(b'{"\xff": 1}'), WEIGHTS),
    "header nests deeply": (header_text(b"[" * 200_000), WEIGHTS),
    "header names a tensor twice": (header_text(DUPLICATE), WEIGHTS),
    "entry without offsets": (header(lambda h: h[FC].pop("data_offsets")), FC),
    "entry is a number": (header(lambda h: h.update({FC: 5})), FC),
    "overlapping offsets": (entry("norm.weight", data_offsets=[0, 512]), "overlap"),
    "negative offsets": (entry("norm.weight", data_offsets=[-512, 0]), "norm.weight"),
    "offsets run backwards": (entry("norm.weight", data_offsets=[512, 0]), "norm.weight"),
    "offsets beyond 64 bits": (entry("norm.weight", data_offsets=[2**70, 2**70 + 512]), "norm"),
    "shape is negative": (entry("norm.weight", shape=[-256]), "norm.weight"),
    "shape overflows": (entry("norm.weight", shape=[2**62, 2**62]), "norm.weight"),
    "shape lies": (entry("norm.weight", shape=[255]), "norm.weight"),
    "nine dimensions": (entry("norm.weight", shape=[1] * 8 + [256]), "norm.weight"),
    "FP8 weights": (entry("norm.weight", dtype="F8_E4M3"), "norm.weight"),
    "dtype is a list": (entry("norm.weight", dtype=["BF16"]), "norm.weight"),
    # tensors
    "missing tensor": (tensors(lambda t: t.pop(FC)), FC),
    "missing codebook": (
        tensors(lambda t: t.pop("candidate_selector.successor_codebook")),
        "selector_successor",
    ),
    "extra tensor": (put("layers.0.self_attn.g_proj.weight", to_bf16(ROW)), "g_proj"),
    "extra layer": (put("layers.2.input_layernorm.weight", to_bf16(ROW)), "layers.2"),
    "wrong shape": (put(FC, np.ones((256, 512), np.uint16)), FC),
    "scalar": (put("norm.weight", np.ones((), np.uint16)), "norm.weight"),
    "integers": (put("norm.weight", np.ones(256, np.int64)), "norm.weight"),
    "NaN": (poke(FC, 0x7FC0), FC),
    "infinity": (poke("norm.weight", 0x7F80), "norm.weight"),
    "negative infinity": (poke("layers.1.mlp.up_proj.weight", 0xFF80), "up_proj"),
    "beyond the type's scale": (poke(FC, 0x7F00), FC),
    # shards
    "duplicate shard": (duplicate_shard, "also in model-00002"),
    "index names a file outside": (index({FC: "../model.safetensors"}), FC),
    "index names no file": (index({FC: "none.safetensors"}), "none.safetensors"),
    "index names a loop": (index_loop, "loop.safetensors"),
    "index names a tensor that is not there": (index({"x": WEIGHTS}), "x: expected"),
    "index is a list": (index([]), "weight_map"),
    # mask_embedding.pt
    "pickle with code": (mask(torch_file(None, evil=CODE)), "mask_embedding.pt"),
    "zip bomb": (mask(torch_file(np.zeros(1 << 20, np.float32), compress=8)), "mask_embedding.pt"),
    "not a zip": (mask(b"PK\3\4" + b"\0" * 50), "mask_embedding.pt"),
    "other hidden size": (mask(torch_file(ROW[:100])), "mask_embedding.pt"),
    "other mask token": (mask(torch_file({"mask_token_id": 1, "embedding": ROW})), "mask_token_id"),
    "a pickle of a number": (mask(torch_file(7)), "mask_embedding.pt"),
}


def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, *args: object) -> str:
    """The one line with which the command refuses; checks that nothing was written."""
    out = tmp_path / "out"
    out.mkdir()
    before = sorted(tmp_path.rglob("*"))
    code = dflash2_to_gguf.main([*map(str, args), "--outfile", str(out), "--threads", "1"])
    captured = capsys.readouterr()
    assert code == 1
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
    return captured.err


@pytest.mark.parametrize("case", CASES)
def test_malformed_checkpoint_is_refused_in_one_line(
    case: str, drafter: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, word = CASES[case]
    folder = tmp_path / "d"
    shutil.copytree(drafter, folder)
    change(folder)
    assert word in refused(capsys, tmp_path, folder, "--target", target, "--outtype", "q8_0")


def test_malformed_target_is_refused_in_one_line(
    drafter: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = target.read_bytes()
    bad = tmp_path / "t.gguf"
    for i, data in enumerate((b"", b"GGUF", good[:50], good[:-1000], b"\0" + good[1:])):
        bad.write_bytes(data)
        folder = tmp_path / f"{i}"
        folder.mkdir()
        assert "t.gguf" in refused(capsys, folder, drafter, "--target", bad)


def test_malformed_imatrix_is_refused_in_one_line(
    drafter: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_imatrix(tmp_path / "m.gguf", {FC: (np.full((1, 768), np.nan), [[1]])})
    message = refused(capsys, tmp_path, drafter, "--target", target, "--imatrix", path)
    assert "m.gguf: fc.weight" in message

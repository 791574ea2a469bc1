"""Property tests: whatever a file holds, the readers answer or raise ConvertError, nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies
import numpy as np
import pytest
import tiny_drafter
from convert_error import ConvertError
from converted import ROW
from drafter_convert import convert
from hf_config import parse_config
from hf_target import read_hf_target
from hf_weights import read_safetensors
from spm_vocab import read_spm
from target_info import read_gguf_target
from tensor_source import n_rows
from test_hf_target import SPM, write_bpe
from tiny_drafter import torch_file
from torch_pickle import load_mask_embedding

st, given = hypothesis.strategies, hypothesis.given

FILES = hypothesis.settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)


def attempt(call: Callable[[], Any]) -> tuple[Any, str]:
    """(what the call returned, the one line it was refused with)."""
    try:
        return call(), ""
    except ConvertError as e:
        message = str(e)
    assert "\n" not in message
    return None, message


def mutate(data: bytes, at: int, new: bytes, cut: int) -> bytes:
    """Some bytes overwritten, some cut off."""
    at %= max(1, len(data))
    changed = data[:at] + new + data[at + len(new) :]
    return changed[: len(changed) - cut % len(changed)] if cut % 3 == 0 else changed


mutation = st.tuples(st.integers(0, 5000), st.binary(min_size=1, max_size=6), st.integers(0, 5000))


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of a nested object are."""
    if not isinstance(value, dict):
        return [prefix]
    return [prefix, *(p for key in value for p in paths(value[key], (*prefix, key)))]


CONFIGS = [
    tiny_drafter.config(
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0,
                         "original_max_position_embeddings": 64},
        transformer_layer_config={"head_dim": 64},
        dflash_config={"use_swa": True, "swa_window_size": 9, "selector_vocab_size": 90},
    )
]  # fmt: skip


@hypothesis.settings(max_examples=400, deadline=None)
@given(st.sampled_from(paths(CONFIGS[0])[1:]), anything)
def test_any_value_anywhere_in_a_config(path: tuple[Any, ...], value: Any) -> None:
    config: Any = copy.deepcopy(CONFIGS[0])
    parent = config
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    parsed, message = attempt(lambda: parse_config(config))
    if parsed is None:
        assert message.startswith("config.json: ")
    else:
        assert parsed.n_layer > 0
        assert all(0 <= tap < 2**20 for tap in parsed.target_layer_ids)


@FILES
@given(change=mutation)
def test_mutated_safetensors_header(change: tuple[int, bytes, int], tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    good = {"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.uint16)}
    path.write_bytes(mutate(tiny_drafter.safetensors_bytes(good), *change))
    tensors, message = attempt(lambda: read_safetensors(path))
    if tensors is None:
        assert message.startswith(str(path))
    else:
        for tensor in tensors.values():
            end = tensor.offset + tensor.read(0, n_rows(tensor.shape)).nbytes
            assert end <= path.stat().st_size


@FILES
@given(change=mutation)
def test_mutated_target(change: tuple[int, bytes, int], target: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(mutate(target.read_bytes(), *change))
    found, message = attempt(lambda: read_gguf_target(path))
    if found is None:
        assert message.startswith(str(path))
    else:
        assert found.n_vocab > 0


@FILES
@given(change=mutation)
def test_mutated_mask_embedding(change: tuple[int, bytes, int], tmp_path: Path) -> None:
    path = tmp_path / "mask_embedding.pt"
    path.write_bytes(mutate(torch_file({"mask_token_id": 95, "embedding": ROW}), *change))
    row, message = attempt(lambda: load_mask_embedding(path, 95, 256))
    if row is None:
        assert message.startswith(str(path))
    else:
        assert (row.shape, row.dtype) == ((256,), np.float32)


@FILES
@given(data=st.binary(max_size=60))
def test_any_pickle_in_a_mask_embedding(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mask_embedding.pt"
    path.write_bytes(torch_file(None, evil=data))
    with pytest.raises(ConvertError):
        load_mask_embedding(path, 95, 256)


@FILES
@given(change=mutation)
def test_mutated_sentencepiece_model(change: tuple[int, bytes, int], tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(mutate(SPM, *change))
    vocab, message = attempt(lambda: read_spm(path))
    if vocab is None:
        assert message.startswith(str(path))
    else:
        assert all(1 <= piece.type <= 6 for piece in vocab.pieces)


TOKENIZER_KEYS = ["model", "pre_tokenizer", "added_tokens", "post_processor", "normalizer"]


@FILES
@given(key=st.sampled_from(TOKENIZER_KEYS), value=anything, config=anything)
def test_any_value_in_tokenizer_files(key: str, value: Any, config: Any, tmp_path: Path) -> None:
    folder = write_bpe(tmp_path / "t", [f"t{i}" for i in range(96)], ["t 0"])
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    target, message = attempt(lambda: read_hf_target(folder))
    if target is None:
        assert message.startswith(str(folder))
    else:
        assert target.n_vocab == 96


@FILES
@given(change=mutation)
def test_mutated_checkpoint_converts_or_leaves_nothing(
    change: tuple[int, bytes, int], target: Path, tmp_path: Path
) -> None:
    cfg = tiny_drafter.config(
        hidden_size=256, intermediate_size=32, num_hidden_layers=1, layer_types=["full_attention"]
    )
    folder = tmp_path / "d"
    if not folder.exists():
        tiny_drafter.write_drafter(folder, cfg)
        (folder / "model.safetensors").rename(tmp_path / "good")
    good = (tmp_path / "good").read_bytes()
    (folder / "model.safetensors").write_bytes(mutate(good, *change))
    out = tmp_path / "x.gguf"
    out.unlink(missing_ok=True)
    result, message = attempt(lambda: convert(folder, target, outtype="bf16", outfile=out))
    if result is None:
        assert message.startswith(str(folder))
        assert not out.exists()
    else:
        assert out.read_bytes()[:4] == b"GGUF"
    assert {p.name for p in tmp_path.iterdir()} <= {"d", "good", "x.gguf"}

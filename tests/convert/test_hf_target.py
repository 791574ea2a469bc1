"""Targets given as Hugging Face folders: the same vocabulary as the target's GGUF."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pre_tokenizers
import pytest
import tiny_drafter
from convert_error import ConvertError
from drafter_convert import convert
from gguf_source import read_header
from hf_target import read_hf_target
from pre_tokenizers import pre_tokenizer_name
from spm_vocab import read_spm
from target_info import read_gguf_target

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5

CONFIG: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 96,
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DIGITS_AND_BYTES = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    ],
}


def split(*patterns: str) -> dict[str, Any]:
    """A pre_tokenizer of regular expressions, then bytes, as most models have it."""
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated"} for p in patterns
    ]
    return {
        "type": "Sequence",
        "pretokenizers": [*steps, {"type": "ByteLevel", "use_regex": False}],
    }


def write_bpe(
    folder: Path,
    tokens: list[str],
    merges: list[Any],
    *,
    pre_tokenizer: Any = DIGITS_AND_BYTES,
    special: tuple[int, ...] = (),
    **config: Any,
) -> Path:
    """A folder with config.json and a byte-level BPE tokenizer.json."""
    folder.mkdir(exist_ok=True)
    added = [{"id": i, "content": tokens[i], "special": True} for i in special]
    tokenizer = {
        "model": {
            "type": "BPE",
            "vocab": {t: i for i, t in enumerate(tokens) if i not in special},
            "merges": merges,
        },
        "pre_tokenizer": pre_tokenizer,
        "added_tokens": added,
    }
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


def test_smollm2_tokenizer_json_gives_the_tokens_of_its_gguf(smollm2: Path, tmp_path: Path) -> None:
    values = read_header(smollm2).values
    tokens = [t.decode() for t in values["tokenizer.ggml.tokens"].strings()]
    types = values["tokenizer.ggml.token_type"].integers()
    merges = [m.decode() for m in values["tokenizer.ggml.merges"].strings()]
    folder = write_bpe(
        tmp_path / "hf",
        tokens,
        [m.split(" ") for m in merges],
        special=tuple(i for i, kind in enumerate(types) if kind == CONTROL),
        vocab_size=len(tokens),
        hidden_size=576,
        num_hidden_layers=30,
        model_type="llama",
        pad_token_id=2,
    )
    ours, theirs = read_hf_target(folder), read_gguf_target(smollm2)
    assert ours.vocab_hash == theirs.vocab_hash
    for key in ("model", "pre", "tokens", "token_type", "merges"):
        assert ours.tokenizer[f"tokenizer.ggml.{key}"] == values[f"tokenizer.ggml.{key}"]
    for key in ("bos", "eos", "padding"):
        name = f"tokenizer.ggml.{key}_token_id"
        assert ours.tokenizer[name] == values[name]
    assert (ours.n_embd, ours.n_layer, ours.n_vocab) == (576, 30, 49152)


def test_drafter_converts_with_a_folder_and_the_vocabulary_is_padded(
    drafter: Path, tmp_path: Path
) -> None:
    tokens = [f"t{i}" for i in range(90)] + ["<|im_end|>", "user ▁ word"]
    folder = write_bpe(
        tmp_path / "target", tokens, ["t 0"], special=(90,), eos_token_id=90,
        text_config={**CONFIG, "rope_scaling": {"mrope_section": [1, 2, 3]}},
    )  # fmt: skip
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append({"id": 91, "content": "user ▁ word", "special": False})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_text("{{ hello }}")
    (folder / "tokenizer_config.json").write_text('{"add_bos_token": false}')

    result = convert(drafter, folder, outtype="bf16", outfile=tmp_path)
    assert result.outfile.name == "dflash-target-BF16.gguf"
    fields = gguf.GGUFReader(result.outfile).fields
    found = fields["tokenizer.ggml.tokens"].contents()
    assert found[:90] == tokens[:90]
    assert found[90:] == ["<|im_end|>", "user   word"] + [f"[PAD{i}]" for i in range(92, 96)]
    types = fields["tokenizer.ggml.token_type"].contents()
    assert types == [1] * 90 + [CONTROL, USER_DEFINED] + [UNUSED] * 4
    assert fields["tokenizer.chat_template"].contents() == "{{ hello }}"
    assert fields["tokenizer.ggml.add_bos_token"].contents() is False
    assert fields["tokenizer.ggml.eos_token_id"].contents() == 90
    assert fields["dflash.rope.dimension_sections"].contents() == [32, 0, 0, 0]
    assert fields["dflash2.target.name"].contents() == "target"


def test_mask_embedding_takes_the_embedding_from_the_folders_weights(tmp_path: Path) -> None:
    tensors = {**tiny_drafter.weights(tiny_drafter.CONFIG)}
    tensors["embed_tokens.weight"] = np.ones((96, 256), np.uint16)
    drafter = tiny_drafter.write_drafter(tmp_path / "d", tiny_drafter.CONFIG, tensors)
    folder = write_bpe(tmp_path / "target", [f"t{i}" for i in range(96)], ["t 0"])
    with pytest.raises(ConvertError, match=r"expected output.weight, the drafter brings an embed"):
        convert(drafter, folder, outtype="f32", outfile=tmp_path / "x.gguf")
    head = np.random.default_rng(1).normal(size=(96, 256)).astype(np.float32)
    data = tiny_drafter.safetensors_bytes({"lm_head.weight": head})
    (folder / "model-00002-of-00002.safetensors").write_bytes(data)
    result = convert(drafter, folder, outtype="f32", outfile=tmp_path / "x.gguf")
    stored = {t.name: t.data for t in gguf.GGUFReader(result.outfile).tensors}
    np.testing.assert_array_equal(stored["output.weight"], head)


QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize(
    ("pre_tokenizer", "model_type", "name"),
    [
        ({"type": "ByteLevel", "use_regex": True}, "gpt2", "gpt-2"),
        (DIGITS_AND_BYTES, "llama", "smollm"),
        (split(QWEN2), "qwen3", "qwen2"),
        (split(QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")), "llama", "llama-bpe"),
        (split(QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")), "glm4_moe", "glm4"),
        (split(pre_tokenizers.QWEN35), "qwen3_5", "qwen35"),
        (split(pre_tokenizers.GPT4O), "gpt_oss", "gpt-4o"),
        (split(pre_tokenizers.TEKKEN), "mistral", "tekken"),
        (
            split(*(p.replace(r"\r\n", "\r\n") for p in pre_tokenizers.DEEPSEEK3)),
            "deepseek_v3",
            "deepseek-v3",
        ),
        (split(r"\d+"), "qwen3", None),
        (split(), "qwen3", None),
        (None, "qwen3", None),
        ({"type": "Metaspace"}, "qwen3", None),
    ],
)
def test_pre_tokenizer_names(pre_tokenizer: Any, model_type: str, name: str | None) -> None:
    assert pre_tokenizer_name(pre_tokenizer, model_type) == name


def test_unknown_pre_tokenizer_says_how_to_pass_it(tmp_path: Path) -> None:
    tokens = [f"t{i}" for i in range(96)]
    folder = write_bpe(tmp_path / "t", tokens, ["t 0"], pre_tokenizer=split(r"\d+"))
    with pytest.raises(ConvertError, match=r"pre_tokenizer: expected a known one.*--pre-tokenizer"):
        read_hf_target(folder)
    target = read_hf_target(folder, pre_tokenizer="qwen2")
    assert target.tokenizer["tokenizer.ggml.pre"].text() == "qwen2"


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def piece(text: bytes, score: float, kind: int) -> bytes:
    body = message(1, text) + varint(2 << 3 | 5) + struct.pack("<f", score)
    return message(1, body + varint(3 << 3) + varint(kind))


SPM = (
    piece(b"<unk>", 0.0, 2)
    + piece(b"<s>", 0.0, 3)
    + piece(b"</s>", 0.0, 3)
    + piece(b"<0x0A>", 0.0, 6)
    + piece("▁the".encode(), -1.5, 1)
    + message(2, message(1, b"trainer" * 30))
    + message(3, message(1, b"identity") + varint(3 << 3) + varint(0))
)


def test_sentencepiece_tokens_scores_and_types(drafter: Path, tmp_path: Path) -> None:
    folder = tmp_path / "gemma"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "model_type": "gemma3_text"}))
    (folder / "tokenizer.model").write_bytes(SPM)
    added = {
        "5": {"content": "<start_of_turn>", "special": True},
        "6": {"content": "▁▁", "special": False},
        "999": {"content": "outside", "special": True},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    result = convert(drafter, folder, outtype="bf16", outfile=tmp_path / "x.gguf")
    fields = gguf.GGUFReader(result.outfile).fields
    get = lambda key: fields[f"tokenizer.ggml.{key}"].contents()  # noqa: E731
    assert (get("model"), get("pre")) == ("llama", "default")
    tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "▁the", "<start_of_turn>", "  "]
    assert get("tokens")[:8] == [*tokens, "[PAD7]"]
    assert get("token_type")[:8] == [2, 3, 3, 6, 1, 3, 4, 5]
    assert get("scores")[:8] == [0, 0, 0, 0, -1.5, -1000, -1000, -10000]
    assert len(get("tokens")) == 96
    assert get("add_space_prefix") is False
    assert fields["dflash.embedding_scale"].contents() == 16


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "found no pieces"),
        (b"\x0a", "expected a SentencePiece model"),
        (b"\x0a\xff\xff\xff\xff\x0f", "field longer than the message"),
        (b"\xff" * 20, "varint too long"),
        (b"\x0b", "wire type 3"),
        (piece(b"x", 0, 9), "piece type 9"),
        (SPM[:-4], "expected a SentencePiece model"),
    ],
)
def test_damaged_sentencepiece_model_is_refused(data: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(data)
    with pytest.raises(ConvertError, match=text):
        read_spm(path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model": {"type": "Unigram"}}, "model.type: expected byte-level BPE, got 'Unigram'"),
        ({"model": 5}, "model: expected an object"),
        ({"model": {"type": "BPE", "vocab": {"a": 96}}}, "'a': expected an id below vocab_size 96"),
        ({"model": {"type": "BPE", "vocab": {"a": "b"}}}, "'a': expected an id below"),
        (
            {"model": {"type": "BPE", "vocab": {"a": 1}, "merges": []}},
            "model.merges: expected merges",
        ),
        ({"model": {"type": "BPE", "vocab": {"a": 1}, "merges": [5]}}, "tokenizer files"),
        ({"added_tokens": {"a": 1}}, "added_tokens: expected a list"),
        ({"added_tokens": [{"id": 1}]}, "token 1: expected text, got None"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "model.type: expected byte-level BPE"),
    ],
)
def test_damaged_tokenizer_json_is_refused(
    change: dict[str, Any], text: str, tmp_path: Path
) -> None:
    folder = write_bpe(tmp_path / "t", [f"t{i}" for i in range(96)], ["t 0"])
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConvertError, match=text) as raised:
        read_hf_target(folder)
    assert "\n" not in str(raised.value)


def test_folder_without_tokenizer_or_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match=r"config.json: expected a file, found none"):
        read_hf_target(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(ConvertError, match=r"expected tokenizer.json or tokenizer.model"):
        read_hf_target(tmp_path)

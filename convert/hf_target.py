"""A target given as a Hugging Face folder: config.json and tokenizer files, weights not needed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import gguf
from convert_error import ConvertError
from dflash2.gguf_raw import Value, boolean, f32_array, i32_array, string, string_array, u32
from gguf_schema import KEY_MASK_TOKEN, KEY_TOKEN_TYPE, KEY_TOKENS, OUTPUT, TOKEN_EMBD
from hf_weights import StoredTensor, checkpoint_name, read_safetensors
from json_values import Values, load_json
from pre_tokenizers import pre_tokenizer_name
from spm_vocab import read_spm
from target_info import Target, vocab_hash

MAX_TOKENIZER_BYTES: Final = 256 << 20
MAX_VOCAB: Final = 4 << 20

# token types of GGUF
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5

_EMBEDDING_NAMES: Final = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
)
_HEAD_NAMES: Final = ("lm_head.weight", "language_model.lm_head.weight")
_SPECIAL_KEYS: Final = {"unk": "unknown", "sep": "seperator", "pad": "padding"}  # GGUF's spelling


class _Vocabulary:
    """Tokens by id, padded to the size of the embedding."""

    def __init__(self, n_vocab: int, where: str) -> None:
        self._where = where
        self.texts = [f"[PAD{i}]".encode() for i in range(n_vocab)]
        self.types = [UNUSED] * n_vocab
        self.scores = [-10000.0] * n_vocab

    def put(self, token: Any, text: Any, kind: int, score: float = -1000.0) -> None:
        n_vocab = len(self.texts)
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < n_vocab:
            raise ConvertError(
                f"{self._where}: {text!r}: expected an id below vocab_size {n_vocab}, got {token!r}"
            )
        if not isinstance(text, str | bytes):
            raise ConvertError(f"{self._where}: token {token}: expected text, got {text!r}")
        self.texts[token] = text if isinstance(text, bytes) else text.encode("utf-8")
        self.types[token] = kind
        self.scores[token] = score


def _looks_special(text: str) -> bool:
    """Control tokens that some families forget to mark as special."""
    return (
        text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<｜") and text.endswith("｜>"))  # noqa: RUF001
        or (text.startswith("<unused") and text.endswith(">"))
    )


def _put_added(vocab: _Vocabulary, token: Any, entry: Mapping[str, Any]) -> None:
    text = entry.get("content")
    if isinstance(text, str) and not (entry.get("special") or _looks_special(text)):
        vocab.put(token, text.replace("\u2581", " "), USER_DEFINED)
    else:
        vocab.put(token, text, CONTROL)


def _special_values(folder: Path, n_vocab: int, *, load_merges: bool) -> dict[str, Value]:
    """Merges, special token ids, flags and chat template, as gguf-py finds them."""
    logging.getLogger("gguf.vocab").setLevel(logging.ERROR)
    try:
        special = gguf.SpecialVocab(folder, load_merges=load_merges, n_vocab=n_vocab)
    except Exception as e:  # of whatever a damaged tokenizer file makes it stumble over
        raise ConvertError(
            f"{folder}: expected Hugging Face tokenizer files, {type(e).__name__}: {e}"
        ) from e
    values: dict[str, Value] = {}
    if load_merges:
        if not special.merges:
            raise ConvertError(
                f"{folder / 'tokenizer.json'}: model.merges: expected merges, got none"
            )
        values["tokenizer.ggml.merges"] = string_array([m.encode() for m in special.merges])
    for kind, token in special.special_token_ids.items():
        values[f"tokenizer.ggml.{_SPECIAL_KEYS.get(kind, kind)}_token_id"] = u32(token)
    for kind, flag in special.add_special_token.items():
        values[f"tokenizer.ggml.add_{kind}_token"] = boolean(flag)
    if isinstance(special.chat_template, str):
        values["tokenizer.chat_template"] = string(special.chat_template)
    return values


def _vocabulary_values(model: str, pre: str, vocab: _Vocabulary) -> dict[str, Value]:
    return {
        "tokenizer.ggml.model": string(model),
        "tokenizer.ggml.pre": string(pre),
        KEY_TOKENS: string_array(vocab.texts),
        KEY_TOKEN_TYPE: i32_array(tuple(vocab.types)),
    }


def _bpe(
    folder: Path, n_vocab: int, model_type: str, pre: str | None
) -> tuple[_Vocabulary, dict[str, Value]]:
    path = folder / "tokenizer.json"
    cfg = Values(str(path), (load_json(path, MAX_TOKENIZER_BYTES),))
    model = Values(str(path), (cfg.mapping("model"),))
    byte_level = "ByteLevel" in str(cfg.find("pre_tokenizer"))
    if model.find("type") != "BPE" or not byte_level:
        raise cfg.error(
            "model.type", "byte-level BPE", model.find("type"), "; pass the target's GGUF file"
        )
    pre = pre or pre_tokenizer_name(cfg.find("pre_tokenizer"), model_type)
    if pre is None:
        raise cfg.error(
            "pre_tokenizer", "a known one", cfg.find("pre_tokenizer"),
            "; pass --pre-tokenizer NAME (llama.cpp's name for it), or the target's GGUF file",
        )  # fmt: skip
    vocab = _Vocabulary(n_vocab, str(path))
    for text, token in model.mapping("vocab").items():
        vocab.put(token, text, NORMAL)
    added = cfg.find("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(entry, dict) for entry in added):
        raise cfg.error("added_tokens", "a list of tokens", type(added).__name__)
    for entry in added:
        _put_added(vocab, entry.get("id"), entry)
    special = _special_values(folder, n_vocab, load_merges=True)
    return vocab, _vocabulary_values("gpt2", pre, vocab) | special


def _spm(folder: Path, n_vocab: int) -> tuple[_Vocabulary, dict[str, Value]]:
    path = folder / "tokenizer.model"
    spm = read_spm(path)
    vocab = _Vocabulary(n_vocab, str(path))
    for token, piece in enumerate(spm.pieces[:n_vocab]):
        vocab.put(token, piece.text, piece.type, piece.score)
    config_path = folder / "tokenizer_config.json"
    if config_path.is_file():
        cfg = Values(str(config_path), (load_json(config_path),))
        for key, entry in cfg.mapping("added_tokens_decoder").items():
            if not key.isdecimal() or not isinstance(entry, dict):
                raise cfg.error("added_tokens_decoder", "tokens by id", key)
            if int(key) < n_vocab:
                _put_added(vocab, int(key), entry)
    values = _vocabulary_values("llama", "default", vocab)
    values["tokenizer.ggml.scores"] = f32_array(vocab.scores)
    values |= _special_values(folder, n_vocab, load_merges=False)
    if not spm.add_space_prefix:
        values["tokenizer.ggml.add_space_prefix"] = boolean(False)
    return vocab, values


def _find_matrix(folder: Path, name: str, tied: bool) -> StoredTensor | None:
    """The embedding or head among the folder's weights, if they are there."""
    names: Sequence[str] = {TOKEN_EMBD: _EMBEDDING_NAMES, OUTPUT: _HEAD_NAMES}[name]
    if name == OUTPUT and tied:
        names = (*_HEAD_NAMES, *_EMBEDDING_NAMES)
    found: dict[str, StoredTensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= {k: v for k, v in read_safetensors(path).items() if k in names}
    return next((found[n] for n in names if n in found), None)


def read_hf_target(folder: Path, *, pre_tokenizer: str | None = None) -> Target:
    """Reads a target's Hugging Face folder; only config.json and tokenizer files must be there.

    pre_tokenizer: llama.cpp's name for the pre-tokenizer, where the table knows none.
    Raises ConvertError that names the file and the key.
    """
    path = folder / "config.json"
    raw = load_json(path)
    top = Values(str(path), (raw,))
    cfg = Values(str(path), (top.mapping("text_config"), raw))
    n_vocab = cfg.integer("vocab_size", high=MAX_VOCAB)
    model_type = str(cfg.find("model_type") or "")
    if (folder / "tokenizer.model").is_file():
        vocab, tokenizer = _spm(folder, n_vocab)
    elif (folder / "tokenizer.json").is_file():
        vocab, tokenizer = _bpe(folder, n_vocab, model_type, pre_tokenizer)
    else:
        raise ConvertError(f"{folder}: expected tokenizer.json or tokenizer.model, found neither")
    rope = cfg.mapping("rope_parameters", "rope_scaling")
    tied = bool(cfg.flag("tie_word_embeddings"))
    return Target(
        path=folder,
        name=checkpoint_name(folder).rpartition("/")[2],
        architecture=model_type,
        n_layer=cfg.integer("num_hidden_layers"),
        n_embd=cfg.integer("hidden_size"),
        n_vocab=n_vocab,
        tokenizer={key: value for key, value in tokenizer.items() if key != KEY_MASK_TOKEN},
        vocab_hash=vocab_hash(vocab.texts, vocab.types),
        uses_mrope="mrope_section" in rope,
        find_matrix=lambda name: _find_matrix(folder, name, tied),
    )

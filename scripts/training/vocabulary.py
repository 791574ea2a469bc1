"""Tokens of a target and the text around chat turns, from its GGUF file or directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import jinja2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from training.training_error import TrainingError

GGUF_CONTROL = 3  # token_type

# how `tokenizer.ggml.pre` splits text before the byte-level merges
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _pre_tokenizer(pre: str) -> Any:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre != "qwen2")
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, byte_level])
    if pre == "qwen2":
        split = pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated")
        return pre_tokenizers.Sequence([split, byte_level])
    if pre in ("gpt-2", "default"):
        return byte_level
    raise TrainingError(
        f"tokenizer.ggml.pre: expected smollm, qwen2 or gpt-2, got {pre!r}; "
        "use the target's Hugging Face directory instead"
    )


@dataclass(frozen=True)
class ChatText:
    """What the chat template writes around the turns of a conversation."""

    before_user: str  # the start of a conversation, with the template's own system prompt
    before_answer: str  # between a user's text and the answer, first of it the end-of-turn token
    after_user: str  # the same without the end-of-turn token
    before_next_user: str  # between an answer's end-of-turn token and the user's next text


class Vocabulary:
    """eog: ids that end a turn or a text."""

    def __init__(
        self, tokenizer: Tokenizer, template: str, eos: str, bos: str, eog: set[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._template = jinja2.Environment().from_string(template)
        self._eos, self._bos = eos, bos
        self.eog = sorted(eog)
        self.chat = self._chat_text()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        batch = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [encoding.ids for encoding in batch]

    def decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def render(self, messages: list[dict[str, str]], *, answer: bool = False) -> str:
        return self._template.render(
            messages=messages,
            add_generation_prompt=answer,
            eos_token=self._eos,
            bos_token=self._bos,
        )

    def with_system(self, system: str) -> str:
        """`before_user` with another system prompt."""
        user = {"role": "user", "content": "\1"}
        return self.render([{"role": "system", "content": system}, user]).split("\1")[0]

    def _chat_text(self) -> ChatText:
        turns = [{"role": "user", "content": "\1"}, {"role": "assistant", "content": "\2"}]
        try:
            before_user, before_answer = self.render(turns[:1], answer=True).split("\1")
            rest = self.render([*turns, {"role": "user", "content": "\3"}]).split("\2")[1]
        except (jinja2.TemplateError, ValueError, IndexError) as e:
            raise TrainingError(f"chat template: expected one for user and assistant: {e}") from e
        after_user, before_next = (
            self._after_end(text) for text in (before_answer, rest.split("\3")[0])
        )
        return ChatText(before_user, before_answer, after_user, before_next)

    def _after_end(self, text: str) -> str:
        ids = self.encode(text)
        ends = [i for i, token in enumerate(ids) if token in self.eog]
        if not ends:
            raise TrainingError("chat template: expected turns that end with an end token")
        return self.decode(ids[ends[0] + 1 :])


def load_vocabulary(path: Path) -> Vocabulary:
    """
    Raises:
        TrainingError: no tokenizer that we can build, or no chat template.
    """
    return _from_directory(path) if path.is_dir() else _from_gguf(path)


def _from_gguf(path: Path) -> Vocabulary:
    reader = gguf.GGUFReader(path)

    def value(key: str) -> Any:
        field = reader.get_field(f"tokenizer.{key}")
        if field is None:
            raise TrainingError(f"{path}: expected the key tokenizer.{key}, found none")
        return field.contents()

    if value("ggml.model") != "gpt2":
        raise TrainingError(
            f"{path}: expected a byte-level BPE tokenizer (gpt2), got {value('ggml.model')!r}; "
            "use the target's Hugging Face directory instead"
        )
    tokens = value("ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in value("ggml.merges")]
    ids = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(value("ggml.pre"))
    tokenizer.decoder = decoders.ByteLevel()
    types = value("ggml.token_type")
    special = [t for t, kind in zip(tokens, types, strict=True) if kind == GGUF_CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in special])
    eos, bos = value("ggml.eos_token_id"), value("ggml.bos_token_id")
    eog = {eos} | {ids[t] for t in ("<|endoftext|>", "<|im_end|>") if t in ids}
    return Vocabulary(tokenizer, value("chat_template"), tokens[eos], tokens[bos], eog)


def _from_directory(path: Path) -> Vocabulary:
    try:
        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        raw = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
    except Exception as e:  # tokenizers raises Exception itself
        raise TrainingError(
            f"{path}: expected tokenizer.json and tokenizer_config.json: {e}"
        ) from e
    file = path / "chat_template.jinja"
    template = file.read_text(encoding="utf-8") if file.exists() else raw.get("chat_template")
    if not template:
        raise TrainingError(f"{path}: expected a chat template, found none")

    def text(key: str) -> str:
        token = raw.get(key) or ""
        return token["content"] if isinstance(token, dict) else token

    names = {text("eos_token"), "<|endoftext|>", "<|im_end|>"}
    eog = {i for i in map(tokenizer.token_to_id, names) if i is not None}
    return Vocabulary(tokenizer, template, text("eos_token"), text("bos_token"), eog)

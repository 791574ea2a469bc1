"""What a GGUF file says about itself, without loading the model."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

from dflash2._native import core
from dflash2.pairing import DraftFacts, TargetFacts

MAX_ITEMS = 16  # of an array that is printed; longer ones are summed up


@dataclass(frozen=True)
class TensorInfo:
    """shape: ggml order, the row first."""

    name: str
    shape: tuple[int, ...]
    type: str
    n_bytes: int


class GgufInfo:
    """Metadata and tensor list of a GGUF file, in file order.

    Raises:
        OSError: the file cannot be read.
        ModelFormatError: it is not a whole, well-formed GGUF.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.metadata, tensors = core.read_gguf(self.path)
        self.tensors = [TensorInfo(name, tuple(ne), kind, n) for name, ne, kind, n in tensors]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    @property
    def kind(self) -> str:
        """In words: what the file can be used for."""
        if self.architecture != "dflash":
            return f"target model, architecture {self.architecture or 'unknown'}"
        names = {tensor.name for tensor in self.tensors}
        if "selector_hidden.weight" in names:
            return "DFlash 2 drafter"
        return "DFlash 1 drafter (has no selector: use it with llama-server)"

    @property
    def is_drafter(self) -> bool:
        return self.architecture == "dflash"

    def hparams(self) -> dict[str, Any]:
        """Metadata of the architecture and of our converter; long arrays as "640 values"."""
        prefixes = (f"{self.architecture}.", "dflash2.")
        return {
            key: f"{len(value)} values" if _is_long(value) else value
            for key, value in self.metadata.items()
            if key.startswith(prefixes)
        }

    def types(self) -> dict[str, tuple[int, int]]:
        """(tensors, bytes) of each tensor type, the largest first."""
        n: Counter[str] = Counter(t.type for t in self.tensors)
        size: Counter[str] = Counter()
        for t in self.tensors:
            size[t.type] += t.n_bytes
        return {name: (n[name], n_bytes) for name, n_bytes in size.most_common()}

    def target_facts(self) -> TargetFacts:
        arch, tokens = self.architecture, self._list("tokenizer.ggml.tokens")
        return TargetFacts(
            path=self.path,
            n_embd=self._int(f"{arch}.embedding_length"),
            n_vocab=len(tokens),
            n_layer=self._int(f"{arch}.block_count"),
            vocab_hash=_vocab_hash(tokens, self._list("tokenizer.ggml.token_type")),
        )

    def draft_facts(self) -> DraftFacts:
        codebook = [t for t in self.tensors if t.name == "selector_predecessor.weight"]
        return DraftFacts(
            path=self.path,
            n_embd=self._int("dflash.embedding_length"),
            n_vocab=codebook[0].shape[-1] if codebook else 0,
            target_layers=self._list("dflash.target_layers"),
            target_name=str(self.metadata.get("dflash2.target.name", "")),
            target_n_layer=self._int("dflash2.target.block_count"),
            vocab_hash=self._int("dflash2.target.vocab_hash"),
        )

    def _int(self, key: str) -> int:
        value = self.metadata.get(key, 0)
        return value if isinstance(value, int) else 0

    def _list(self, key: str) -> list[Any]:
        value = self.metadata.get(key, [])
        return value if isinstance(value, list) else []


def _is_long(value: object) -> bool:
    return isinstance(value, list) and len(value) > MAX_ITEMS


def _vocab_hash(tokens: list[str], types: list[int]) -> int:
    """FNV-1a 64 over text, a zero byte and the type of every token in id order."""
    prime, mask = 0x100000001B3, 2**64 - 1
    value = 0xCBF29CE484222325
    for i, text in enumerate(tokens):
        kind = types[i] & 0xFF if i < len(types) else 1
        for byte in (*text.encode(errors="surrogateescape"), 0, kind):
            value = (value ^ byte) * prime & mask
    return value

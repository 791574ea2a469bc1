"""What a GGUF file says about itself, without loading the model."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

from dflash2._native import core
from dflash2.pairing import DraftFacts, TargetFacts

MAX_ITEMS = 16  # of an array that is printed; longer ones are summed up
FORKS = ("dflash-draft", "dspark")  # architectures that upstream does not know

LOADS_IN = {
    "DFlash 2": "llama.cpp b10658 or later, --spec-type draft-dflash",
    "DFlash 1": "llama.cpp with --spec-type draft-dflash, builds before b10658 included",
    "DSpark": "llama.cpp with --spec-type draft-dspark",
    "fork": "no upstream llama.cpp, only the fork that it was made for",
}


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
        self.metadata, tensors = core.read_gguf(os.fsencode(path))
        self.tensors = [TensorInfo(name, tuple(ne), kind, n) for name, ne, kind, n in tensors]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    @property
    def family(self) -> str:
        """One of LOADS_IN for drafters, else ""."""
        names = {tensor.name for tensor in self.tensors}
        if self.architecture in FORKS or self.architecture.endswith("-dflash-draft"):
            return "fork"
        if self.architecture != "dflash":
            return ""
        if "markov_w1.weight" in names:
            return "DSpark"
        return "DFlash 2" if "selector_hidden.weight" in names else "DFlash 1"

    @property
    def kind(self) -> str:
        """In words: what the file can be used for."""
        if not self.family:
            return f"target model, architecture {self.architecture or 'unknown'}"
        if self.family == "fork":
            return f"drafter in the schema of a fork, architecture {self.architecture}"
        if self.family == "DFlash 1":
            return "DFlash 1 drafter (has no selector: use it with llama-server)"
        if self.family == "DSpark":
            return "DSpark drafter (use it with llama-server)"
        return "DFlash 2 drafter"

    @property
    def is_drafter(self) -> bool:
        """In upstream's schema."""
        return self.architecture == "dflash"

    @property
    def llama_cpp(self) -> str:
        """Which builds of llama.cpp load a drafter, in words; "" for other files."""
        return LOADS_IN.get(self.family, "")

    @property
    def uses_mrope(self) -> bool:
        return any(self.items(f"{self.architecture}.rope.dimension_sections"))

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
        arch, tokens = self.architecture, self.items("tokenizer.ggml.tokens")
        return TargetFacts(
            path=self.path,
            n_embd=self.integer(f"{arch}.embedding_length"),
            n_vocab=len(tokens),
            n_layer=self.integer(f"{arch}.block_count"),
            vocab_hash=_vocab_hash(tokens, self.items("tokenizer.ggml.token_type")),
        )

    def draft_facts(self) -> DraftFacts:
        codebook = [t for t in self.tensors if t.name == "selector_predecessor.weight"]
        n_tokens = len(self.items("tokenizer.ggml.tokens"))
        return DraftFacts(
            path=self.path,
            n_embd=self.integer("dflash.embedding_length"),
            n_vocab=codebook[0].shape[-1] if codebook else n_tokens,
            target_layers=self.items("dflash.target_layers"),
            target_name=str(self.metadata.get("dflash2.target.name", "")),
            target_n_layer=self.integer("dflash2.target.block_count"),
            vocab_hash=self.integer("dflash2.target.vocab_hash"),
        )

    def integer(self, key: str) -> int:
        """0 when absent or of another type."""
        value = self.metadata.get(key, 0)
        return value if isinstance(value, int) else 0

    def items(self, key: str) -> list[Any]:
        """Empty when absent or of another type."""
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

"""llama.cpp's name for the pre-tokenizer that a tokenizer.json describes. Maintained by hand.

llama.cpp keeps no list of patterns that a file could be looked up in; each name stands for split
patterns (and flags) in its source. A new model family needs a row here, or --pre-tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_NEWLINES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)
_SLASHES: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

BYTE_LEVEL: Final = "<byte-level>"  # ByteLevel with its own GPT-2 pattern
DIGITS: Final = "<digits>"  # Digits, one by one

QWEN2: Final = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_NEWLINES}"
QWEN35: Final = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
    rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_NEWLINES}"
)
LLAMA3: Final = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_NEWLINES}"
GPT4O: Final = (
    rf"{_CASED[0]}{_CONTRACTIONS}?|{_CASED[1]}{_CONTRACTIONS}?|"
    rf"\p{{N}}{{1,3}}|{_SLASHES}|{_NEWLINES}"
)
TEKKEN: Final = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_SLASHES}|{_NEWLINES}"
DEEPSEEK3: Final = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{_NEWLINES}",
)

# (split patterns, start of the target's model_type, llama.cpp's name); the first match counts
TABLE: Final[tuple[tuple[tuple[str, ...], str, str], ...]] = (
    ((BYTE_LEVEL,), "", "gpt-2"),
    ((DIGITS, BYTE_LEVEL), "", "smollm"),
    ((QWEN2,), "", "qwen2"),
    ((QWEN35,), "", "qwen35"),
    ((LLAMA3,), "glm", "glm4"),
    ((LLAMA3,), "lfm2", "lfm2"),
    ((LLAMA3,), "falcon_h1", "falcon-h1"),
    ((LLAMA3,), "", "llama-bpe"),
    ((GPT4O,), "minimax", "minimax-m2"),
    ((GPT4O,), "llama4", "llama4"),
    ((GPT4O,), "", "gpt-4o"),
    ((TEKKEN,), "", "tekken"),
    (DEEPSEEK3, "hunyuan", "hunyuan-dense"),
    (DEEPSEEK3, "", "deepseek-v3"),
)


def split_patterns(pre_tokenizer: Any) -> tuple[str, ...]:
    """The split steps of a tokenizer.json's pre_tokenizer, as TABLE writes them."""
    if not isinstance(pre_tokenizer, Mapping):
        return ()
    kind = pre_tokenizer.get("type")
    if kind == "Sequence":
        steps = pre_tokenizer.get("pretokenizers")
        return tuple(p for step in steps for p in split_patterns(step)) if steps else ()
    if kind == "ByteLevel":
        return (BYTE_LEVEL,) if pre_tokenizer.get("use_regex", True) else ()
    if kind == "Digits" and pre_tokenizer.get("individual_digits"):
        return (DIGITS,)
    pattern = pre_tokenizer.get("pattern")
    if kind == "Split" and isinstance(pattern, Mapping) and isinstance(pattern.get("Regex"), str):
        return (pattern["Regex"].replace("\r", r"\r").replace("\n", r"\n"),)
    return (f"<{kind}>",)


def pre_tokenizer_name(pre_tokenizer: Any, model_type: str) -> str | None:
    """llama.cpp's name, None when TABLE has none."""
    patterns = split_patterns(pre_tokenizer)
    for known, prefix, name in TABLE:
        if known == patterns and model_type.startswith(prefix):
            return name
    return None

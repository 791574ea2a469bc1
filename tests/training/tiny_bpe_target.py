"""A tiny random GGUF target with a byte-level BPE tokenizer, as the targets we train for have."""

from __future__ import annotations

from pathlib import Path

import gguf
from make_tiny_models import N_VOCAB, SPECIALS, make_tiny_target
from tokenizers.pre_tokenizers import ByteLevel


def tiny_target(directory: Path) -> Path:
    """The target of make_tiny_models.py with another tokenizer."""
    reader = gguf.GGUFReader(make_tiny_target(directory / "source.gguf"))
    path = directory / "target.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, item in reader.fields.items():
        if not key.startswith(("GGUF.", "tokenizer.ggml")) and key != "general.architecture":
            writer.add_key_value(key, item.contents(), *item.types[:1], sub_type=item.types[-1])
    characters = sorted(ByteLevel.alphabet())
    tokens = [*SPECIALS, *characters, "th"]
    tokens += [f"<|spare{i}|>" for i in range(N_VOCAB - len(tokens))]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([normal if t in {*characters, "th"} else control for t in tokens])
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

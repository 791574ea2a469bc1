"""The GGUF header reader: exact copies of values, and damaged files refused."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import pytest
import tiny_drafter
from convert_error import ConvertError
from gguf_source import read_header
from target_info import model_stem, read_gguf_target, vocab_hash


def raw(version: int = 3, n_tensors: int = 0, n_values: int = 0, body: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_values) + body


def key(name: str, kind: int, payload: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + payload


def test_values_and_tensors_agree_with_gguf_py(tmp_path: Path) -> None:
    import numpy as np

    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint64("a.u64", 2**63)
    writer.add_int8("a.i8", -3)
    writer.add_array("a.floats", [1.5, 2.5])
    writer.add_array("a.strings", ["", "é"])
    writer.add_array("a.ints", [1, -2])
    writer.add_tensor("t.weight", np.ones((2, 3), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    header, reader = read_header(path), gguf.GGUFReader(path)
    assert header.values["a.u64"].integer() == 2**63
    assert header.values["a.i8"].integer() == -3
    assert list(header.values["a.strings"].strings()) == [b"", "é".encode()]
    assert header.values["a.ints"].integers() == [1, -2]
    assert header.values["a.floats"].integers() == []
    assert header.values["general.architecture"].text() == "llama"
    for name, value in header.values.items():
        stored = b"".join(p.tobytes() for p in reader.fields[name].parts[3:])
        assert (value.kind, value.data) == (int(reader.fields[name].types[0]), stored)
    (tensor,) = header.tensors.values()
    assert (tensor.name, tensor.shape, tensor.type_id) == ("t.weight", (3, 2), 0)
    assert tensor.offset == reader.tensors[0].data_offset


DAMAGED = {
    "another format": (b"GGML" + b"\0" * 60, "expected a GGUF file"),
    "empty": (b"", "expected a GGUF file"),
    "only the magic": (b"GGUF", "more bytes"),
    "big endian": (b"GGUF" + struct.pack(">I", 3) + b"\0" * 16, "expected GGUF version"),
    "version 1": (raw(1), "expected GGUF version"),
    "more values than bytes": (raw(n_values=2**60), "more bytes"),
    "more tensors than bytes": (raw(n_tensors=2**60), "more bytes"),
    "key longer than the file": (raw(n_values=1, body=struct.pack("<Q", 2**62)), "more bytes"),
    "key not UTF-8": (raw(n_values=1, body=struct.pack("<Q", 1) + b"\xff" * 9), "UTF-8 name"),
    "unknown type": (raw(n_values=1, body=key("a", 13, b"")), "expected a value type"),
    "array of arrays": (
        raw(n_values=1, body=key("a", 9, struct.pack("<IQ", 9, 1))),
        "array of numbers or strings",
    ),
    "array longer than the file": (
        raw(n_values=1, body=key("a", 9, struct.pack("<IQ", 4, 2**62))),
        "more bytes",
    ),
    "strings longer than the file": (
        raw(n_values=1, body=key("a", 9, struct.pack("<IQ", 8, 2**40))),
        "strings, the file is too short",
    ),
    "string past the end": (
        raw(n_values=1, body=key("a", 9, struct.pack("<IQQ", 8, 1, 2**63))),
        "expected a string, the file ends",
    ),
    "two values of one key": (
        raw(n_values=2, body=key("a", 0, b"\1") * 2),
        "expected one value for a, got two",
    ),
    "alignment of 3": (
        raw(n_values=1, body=key("general.alignment", 4, struct.pack("<I", 3))),
        "expected a power of two",
    ),
    "alignment is text": (
        raw(n_values=1, body=key("general.alignment", 8, struct.pack("<Q", 0))),
        "expected a power of two",
    ),
    "nine dimensions": (
        raw(n_tensors=1, body=struct.pack("<Q", 1) + b"t" + struct.pack("<I", 9)),
        "at most 4 dimensions",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_file_is_refused(case: str, tmp_path: Path) -> None:
    data, message = DAMAGED[case]
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(ConvertError, match=message):
        read_header(path)


def test_vocab_hash_is_fnv1a_of_text_zero_and_type() -> None:
    # FNV-1a 64 of b"a\0\1" + b"\xc3\xa9\0\3", computed step by step
    value = 0xCBF29CE484222325
    for byte in b"a\0\1\xc3\xa9\0\3":
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    assert vocab_hash([b"a", "é".encode()], [1, 3]) == value
    assert vocab_hash([], []) == 0xCBF29CE484222325


def test_vocab_hash_sees_order_and_types() -> None:
    hashes = {
        vocab_hash([b"a", b"b"], [1, 1]),
        vocab_hash([b"b", b"a"], [1, 1]),
        vocab_hash([b"a", b"b"], [1, 3]),
        vocab_hash([b"ab", b""], [1, 1]),
    }
    assert len(hashes) == 4


@pytest.mark.parametrize(
    ("file", "stem"),
    [
        ("Qwen3.8-27B-Q4_K_M.gguf", "Qwen3.8-27B"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("Qwen3.8-27B-UD-IQ4_XS-00001-of-00003.gguf", "Qwen3.8-27B"),
        ("gemma-4-31B-it-BF16.gguf", "gemma-4-31B-it"),
        ("model.gguf", "model"),
    ],
)
def test_model_name_is_the_file_name_without_type_and_shard(file: str, stem: str) -> None:
    assert model_stem(Path("/x") / file) == stem


def test_target_without_vocabulary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(
        raw(n_values=1, body=key("general.architecture", 8, b"\4" + b"\0" * 7 + b"clip"))
    )
    with pytest.raises(ConvertError, match=r"tokenizer.ggml.tokens: expected the target's vocabul"):
        read_gguf_target(path)


def test_a_drafter_as_target_is_refused(tmp_path: Path) -> None:
    path = tiny_drafter.write_target(tmp_path / "x.gguf", arch="dflash")
    with pytest.raises(ConvertError, match="expected a target model, got a drafter"):
        read_gguf_target(path)


def test_target_with_fewer_types_than_tokens_is_refused(tmp_path: Path) -> None:
    path = tiny_drafter.write_target(tmp_path / "x.gguf")
    data = path.read_bytes()
    at = data.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 8
    types = struct.unpack_from("<Q", data, at)[0] * 4
    shorter = data[:at] + struct.pack("<Q", 1) + data[at + 8 : at + 12] + data[at + 8 + types :]
    path.write_bytes(shorter)
    with pytest.raises(ConvertError, match="token_type: expected 96 items, got 1"):
        read_gguf_target(path)

"""Tensors of a small torch .pt file without torch and without running what it says.

A .pt file is a zip with a pickle. Only the few names that plain tensors need can be looked up, all
of them stand-ins defined here; any other name is an error, so that no foreign code ever runs.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from convert_error import ConvertError
from hf_weights import STORAGE
from numpy.typing import NDArray
from tensor_source import to_f32

MAX_PICKLE_BYTES: Final = 1 << 20
MAX_DATA_BYTES: Final = 64 << 20
_DTYPES: Final = {"FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16"}


@dataclass(frozen=True)
class _Storage:
    dtype: str
    key: str
    size: int


class _Unpickler(pickle.Unpickler):
    def __init__(self, path: Path, archive: zipfile.ZipFile, prefix: str) -> None:
        super().__init__(io.BytesIO(_read(path, archive, f"{prefix}data.pkl", MAX_PICKLE_BYTES)))
        self._path = path
        self._archive = archive
        self._prefix = prefix

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda data, *_: data
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        raise ConvertError(f"{self._path}: expected only tensors, got {module}.{name}; not loaded")

    def persistent_load(self, pid: Any) -> _Storage:
        if isinstance(pid, tuple) and len(pid) == 5:
            kind, dtype, key, _, size = pid
            if kind == "storage" and dtype in STORAGE and isinstance(key, str) and key.isdigit():
                return _Storage(dtype, key, size)
        raise ConvertError(f"{self._path}: expected tensor storage, got {pid!r}")

    def _tensor(
        self, storage: Any, offset: Any, size: Any, stride: Any, *_: Any
    ) -> NDArray[np.float32]:
        """A contiguous float tensor."""
        counts = (offset, *size, *stride)
        if not isinstance(storage, _Storage) or not all(type(n) is int and n >= 0 for n in counts):
            raise ConvertError(f"{self._path}: expected a float tensor")
        # the stride of a dimension of one is never used, and torch leaves anything there
        contiguous = [s for i, s in enumerate(stride) if size[i] > 1] == [
            math.prod(size[i + 1 :]) for i in range(len(size)) if size[i] > 1
        ]
        if not len(size) == len(stride) <= 8 or not contiguous:
            raise ConvertError(f"{self._path}: expected a contiguous tensor, got strides {stride}")
        data = _read(self._path, self._archive, f"{self._prefix}data/{storage.key}", MAX_DATA_BYTES)
        itemsize, count = STORAGE[storage.dtype].itemsize, math.prod(size)
        if (offset + count) * itemsize > len(data):
            raise ConvertError(f"{self._path}: expected {count} values, the storage is too short")
        values = np.frombuffer(data, STORAGE[storage.dtype], count, offset * itemsize)
        return to_f32(values.reshape(size), storage.dtype)


def _read(path: Path, archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """A stored member; torch never compresses, so a compressed one is a bomb or damage."""
    try:
        info = archive.getinfo(name)
    except KeyError as e:
        raise ConvertError(f"{path}: expected {name} inside, found none") from e
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > limit:
        raise ConvertError(f"{path}: {name}: expected at most {limit} uncompressed bytes")
    return archive.read(info)


def load_tensors(path: Path) -> Any:
    """What a .pt file holds: a float32 array, an int, or a dict of them.

    Raises ConvertError for anything else, and for damaged files.
    """
    if path.stat().st_size > MAX_PICKLE_BYTES + MAX_DATA_BYTES:
        raise ConvertError(f"{path}: expected one small tensor, got {path.stat().st_size} bytes")
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [
                n for n in archive.namelist() if n.count("/") == 1 and n.endswith("/data.pkl")
            ]
            if len(pickles) != 1:
                raise ConvertError(f"{path}: expected one pickle inside, found {len(pickles)}")
            prefix = pickles[0].removesuffix("data.pkl")
            if f"{prefix}byteorder" in archive.namelist():
                order = _read(path, archive, f"{prefix}byteorder", 16)
                if order != b"little":
                    raise ConvertError(f"{path}: expected little-endian data, got {order!r}")
            return _Unpickler(path, archive, prefix).load()
    except ConvertError:
        raise
    except Exception as e:  # a hostile pickle can make the unpickler raise anything
        raise ConvertError(f"{path}: expected a torch file, {type(e).__name__}: {e}") from e


def load_mask_embedding(path: Path, mask_token_id: int, n_embd: int) -> NDArray[np.float32]:
    """The embedding that replaces the target's row of the mask token, (n_embd,).

    Raises ConvertError when the file holds something else or is for another mask token.
    """
    value = load_tensors(path)
    if isinstance(value, dict):
        found_id = value.get("mask_token_id", mask_token_id)
        if found_id != mask_token_id:
            raise ConvertError(f"{path}: mask_token_id: expected {mask_token_id}, got {found_id!r}")
        value = value.get("embedding", value.get("mask_embedding"))
    if not isinstance(value, np.ndarray) or value.shape not in ((n_embd,), (1, n_embd)):
        found = list(value.shape) if isinstance(value, np.ndarray) else type(value).__name__
        raise ConvertError(f"{path}: expected an embedding of {n_embd} values, got {found}")
    return value.reshape(n_embd)

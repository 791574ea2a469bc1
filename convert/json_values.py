"""Typed look-ups in JSON objects; errors name the file and the key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convert_error import ConvertError

MAX_CONFIG_BYTES = 16 << 20


def load_json(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """A JSON object from a file. Raises ConvertError that names the file."""
    if not path.is_file():
        raise ConvertError(f"{path}: expected a file, found none")
    if path.stat().st_size > max_bytes:
        raise ConvertError(f"{path}: expected at most {max_bytes} bytes of JSON")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as e:
        raise ConvertError(f"{path}: expected JSON, {e}") from e
    if not isinstance(value, dict):
        raise ConvertError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


class Values:
    """Looks keys up in nested objects, innermost first, and checks what it finds.

    A look-up takes aliases in order of preference; errors name the first. null counts as absent.
    """

    def __init__(self, where: str, scopes: Sequence[Mapping[str, Any]]) -> None:
        self._where = where
        self.scopes = tuple(scopes)

    def error(self, key: str, expected: str, got: object, hint: str = "") -> ConvertError:
        found = "nothing" if got is None else repr(got)
        return ConvertError(f"{self._where}: {key}: expected {expected}, got {found}{hint}")

    def find(self, *keys: str) -> Any:
        for key in keys:
            for scope in self.scopes:
                if scope.get(key) is not None:
                    return scope[key]
        return None

    def integer(self, *keys: str, low: int = 1, high: int = 2**31 - 1) -> int:
        value = self.find(*keys)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(keys[0], f"an integer from {low} to {high}", value)
        return value

    def maybe_integer(self, *keys: str, low: int = 1, high: int = 2**31 - 1) -> int | None:
        return None if self.find(*keys) is None else self.integer(*keys, low=low, high=high)

    def number(self, *keys: str) -> float:
        value = self.find(*keys)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) <= 3e38 or math.isnan(value):
            raise self.error(keys[0], "a finite number", value)
        return float(value)

    def maybe_number(self, *keys: str) -> float | None:
        return None if self.find(*keys) is None else self.number(*keys)

    def positive(self, *keys: str) -> float:
        value = self.number(*keys)
        if value <= 0:
            raise self.error(keys[0], "a number above 0", value)
        return value

    def maybe_positive(self, *keys: str) -> float | None:
        return None if self.find(*keys) is None else self.positive(*keys)

    def flag(self, *keys: str) -> bool | None:
        value = self.find(*keys)
        if value is not None and not isinstance(value, bool):
            raise self.error(keys[0], "true or false", value)
        return value

    def integers(self, *keys: str) -> tuple[int, ...]:
        value = self.find(*keys)
        if (
            not isinstance(value, list)
            or not 0 < len(value) <= 1024
            or any(isinstance(v, bool) or not isinstance(v, int) for v in value)
        ):
            raise self.error(keys[0], "a list of integers", value)
        return tuple(value)

    def mapping(self, *keys: str) -> Mapping[str, Any]:
        """The object under a key; empty when absent."""
        value = self.find(*keys)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(keys[0], "an object", value)
        return value

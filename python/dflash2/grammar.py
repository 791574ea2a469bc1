"""JSON schemas as GBNF grammars, by llama-cpp-python's converter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llama_cpp.llama_grammar import json_schema_to_gbnf as _convert


def json_schema_to_gbnf(schema: str | Mapping[str, Any]) -> str:
    """The grammar of a JSON schema.

    Args:
        schema: the schema, or its JSON text.

    Raises:
        ValueError: not JSON, or not a schema that can be converted.
    """
    text = schema if isinstance(schema, str) else json.dumps(schema)
    try:
        if not isinstance(json.loads(text), dict):
            raise TypeError("expected a JSON object")
        return str(_convert(text))
    except Exception as error:  # its own errors are of many types
        raise ValueError(f"json_schema: cannot be made a grammar: {error}") from error

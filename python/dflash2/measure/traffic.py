"""Traffic: a JSONL file with one request a line, with or without its recorded answer.

{"messages": [{"role": "user", "content": "Hi"}], "task": "chat"}
{"prompt": "Once upon a time", "completion": " there was", "temperature": 0.7}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash2.errors import DFlash2Error

Message = dict[str, str]

FIELDS = ("messages", "prompt", "completion", "temperature", "finish_reason")


class TrafficError(DFlash2Error, ValueError):
    """A line that cannot be measured; the message names the file and the line."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One request.

    Args:
        number: of the line in its file, from 1.
        prompt: text, or messages of which the last one is not the answer.
        completion: the recorded answer; None: to be generated.
        whole: the recorded answer ended by itself, so that an end token followed it.
        temperature: it was or will be generated at; None: the run's.
        labels: the user's own fields that are text, numbers or booleans, as text.
        digest: 32 hexadecimal digits of what the line says.
    """

    number: int
    prompt: str | tuple[Message, ...]
    completion: str | None
    whole: bool
    temperature: float | None
    labels: dict[str, str]
    digest: str


def read_traffic(path: Path, *, skip_bad: bool = False) -> Iterator[Line | TrafficError]:
    """Yields the lines that are not empty, one at a time; what is wrong with a bad one as an error.

    Args:
        skip_bad: yield errors instead of raising them.

    Raises:
        OSError: the file cannot be read.
        TrafficError: a line is bad, unless skip_bad.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            try:
                yield parse(number, raw)
            except ValueError as e:
                error = TrafficError(f"{path}:{number}: {e}")
                if not skip_bad:
                    raise error from None
                yield error


def parse(number: int, raw: bytes) -> Line:
    """Raises:
    ValueError: what was expected and found, without the place.
    """
    fields = _object(raw)
    completion = fields.get("completion")
    if not (completion is None or (isinstance(completion, str) and completion)):
        raise ValueError(f"completion: expected text that is not empty, got {_short(completion)}")
    if ("messages" in fields) == ("prompt" in fields):
        raise ValueError("expected either messages or prompt, got " + _names(fields))
    prompt: str | tuple[Message, ...]
    if "prompt" in fields:
        prompt = fields["prompt"]
        if not isinstance(prompt, str) or not prompt:
            raise ValueError(f"prompt: expected text that is not empty, got {_short(prompt)}")
    else:
        messages = _messages(fields["messages"])
        if messages[-1]["role"] == "assistant":
            if completion is not None:
                raise ValueError("expected one answer, got completion and an assistant's message")
            completion = messages.pop()["content"]
            if not completion:
                raise ValueError("messages: expected an answer that is not empty, got none")
        if not messages:
            raise ValueError("messages: expected a question before the answer, got none")
        prompt = tuple(messages)
    canonical = json.dumps(fields, sort_keys=True).encode()
    return Line(
        number=number,
        prompt=prompt,
        completion=completion,
        whole=_finish_reason(fields) == "stop",
        temperature=_temperature(fields.get("temperature")),
        labels={k: _label(v) for k, v in fields.items() if k not in FIELDS and _is_label(v)},
        digest=hashlib.sha256(canonical).hexdigest()[:32],
    )


def _object(raw: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(raw)
    except ValueError as e:  # UnicodeDecodeError too
        raise ValueError(f"expected a JSON object in UTF-8, got {_short(raw.strip())}: {e}") from e
    except RecursionError as e:
        raise ValueError("expected a JSON object, got one that is nested too deep") from e
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, got {_short(fields)}")
    return fields


def _messages(value: object) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"messages: expected a list that is not empty, got {_short(value)}")
    for i, message in enumerate(value):
        ok = isinstance(message, dict) and all(
            isinstance(message.get(key), str) for key in ("role", "content")
        )
        if not ok:
            raise ValueError(
                f"messages[{i}]: expected an object with text in role and content, "
                f"got {_short(message)}"
            )
    return [{"role": message["role"], "content": message["content"]} for message in value]


def _finish_reason(fields: dict[str, Any]) -> str:
    """As in OpenAI's responses. Answers of conversations are whole unless they say otherwise."""
    value = fields.get("finish_reason")
    if value is None:
        return "stop" if "messages" in fields else "length"
    if value not in ("stop", "length"):
        raise ValueError(f"finish_reason: expected stop or length, got {_short(value)}")
    return str(value)


def _temperature(value: object) -> float | None:
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (value == 0 or 1e-3 <= value <= 100):  # type: ignore[operator]
        raise ValueError(f"temperature: expected 0, or 0.001 to 100, got {_short(value)}")
    return float(value)  # type: ignore[arg-type]


def _is_label(value: object) -> bool:
    return isinstance(value, str | int | float)


def _label(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _names(fields: dict[str, Any]) -> str:
    return ", ".join(sorted(fields)[:8]) or "an empty object"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

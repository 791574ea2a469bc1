"""Chat messages to prompt text, by the template in the target's metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from dflash2._native import core
from dflash2.errors import DFlash2Error

Messages = Sequence[Mapping[str, str]]

TEMPLATE_KEY = "tokenizer.chat_template"


class ChatTemplate:
    """Renders messages with a model's own Jinja template.

    Raises:
        DFlash2Error: the model has no template, or it is not valid Jinja.
    """

    def __init__(self, target: core.Target) -> None:
        self._path = target.path
        self.bos = _special(target, target.bos)
        template = target.metadata.get(TEMPLATE_KEY)
        if not template:
            raise DFlash2Error(
                f"{target.path}: no chat template: expected the key {TEMPLATE_KEY}; "
                "render the messages yourself and use generate() or stream()"
            )
        try:
            self._formatter = Jinja2ChatFormatter(
                template=template, eos_token=_special(target, target.eos), bos_token=self.bos
            )
        except jinja2.TemplateError as e:
            raise DFlash2Error(f"{target.path}: chat template: {e}") from e

    def render(self, messages: Messages) -> str:
        """The prompt up to where the assistant's answer begins.

        Raises:
            ValueError: a message is malformed, or the template refuses the messages.
        """
        if not messages:
            raise ValueError("messages: expected at least one, got none")
        for i, message in enumerate(messages):
            if not {"role", "content"} <= set(message):
                raise ValueError(
                    f"messages[{i}]: expected the keys role and content, got {sorted(message)}"
                )
        copies: list[Any] = [dict(message) for message in messages]
        try:
            response = self._formatter(messages=copies)
        except (jinja2.TemplateError, ValueError, TypeError) as e:
            raise ValueError(f"{self._path}: chat template: {e}") from e
        return response.prompt


def _special(target: core.Target, token: int) -> str:
    return target.piece(token, special=True).decode(errors="replace") if token >= 0 else ""

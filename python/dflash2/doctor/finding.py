"""What a check has to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["fault", "note"]


@dataclass(frozen=True)
class Finding:
    """A fault makes the drafter unhealthy; a note is worth knowing.

    Args:
        stage: "file", "config", "taps", "hidden_norm", "conv", "selector", "mask", "rope",
            "window", "embedding scale", "logit scale", "attention", "layers", "overflow",
            "bands", "lossless" or "reference".
        text: what is wrong, in words.
        evidence: the numbers behind it; "" when the text has them.
    """

    severity: Severity
    stage: str
    text: str
    evidence: str = ""


def fault(stage: str, text: str, evidence: str = "") -> Finding:
    return Finding("fault", stage, text, evidence)


def note(stage: str, text: str, evidence: str = "") -> Finding:
    return Finding("note", stage, text, evidence)

"""Does a drafter belong to a target? Checked by load() and by `dflash2 inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash2._native import core
from dflash2.errors import IncompatibleModelsError


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """What a drafter depends on.

    Args:
        n_layer: the file's block count, layers for multi-token prediction included.
        vocab_hash: FNV-1a over texts and types of the tokens, as the converter records it.
    """

    path: str
    n_embd: int
    n_vocab: int
    n_layer: int
    vocab_hash: int

    @classmethod
    def of(cls, target: core.Target) -> TargetFacts:
        metadata = target.metadata
        n_layer = metadata.get(f"{metadata.get('general.architecture')}.block_count")
        return cls(
            path=target.path,
            n_embd=target.n_embd,
            n_vocab=target.n_vocab,
            n_layer=target.n_layer if n_layer is None else int(n_layer),
            vocab_hash=target.vocab_hash,
        )


@dataclass(frozen=True, kw_only=True)
class DraftFacts:
    """What a drafter file says about its target.

    Args:
        target_layers: layers whose input it taps.
        target_name: recorded by our converter, as the two below; "" or 0 in other files.
    """

    path: str
    n_embd: int
    n_vocab: int
    target_layers: Sequence[int]
    target_name: str
    target_n_layer: int
    vocab_hash: int

    @classmethod
    def of(cls, model: core.DraftModel) -> DraftFacts:
        hparams, pairing = model.hparams, model.pairing
        return cls(
            path=model.path,
            n_embd=hparams["n_embd"],
            n_vocab=hparams["n_vocab"],
            target_layers=hparams["target_layers"],
            target_name=pairing["target_name"],
            target_n_layer=pairing["target_n_layer"],
            vocab_hash=pairing["vocab_hash"],
        )


def mismatches(draft: DraftFacts, target: TargetFacts) -> list[str]:
    """Why the two do not fit, in words; empty when they do.

    The recorded name is not compared: quantized copies and fine-tunes carry other names.
    """
    found = []

    def compare(what: str, of_target: int, of_draft: int) -> None:
        if of_target != of_draft:
            found.append(f"{what}: the target has {of_target}, the drafter expects {of_draft}")

    compare("hidden size", target.n_embd, draft.n_embd)
    compare("vocabulary size", target.n_vocab, draft.n_vocab)
    if draft.target_n_layer > 0:
        compare("layers", target.n_layer, draft.target_n_layer)
    outside = [i for i in draft.target_layers if not 0 <= i < target.n_layer]
    if outside:
        found.append(f"tapped layers: the target has 0 to {target.n_layer - 1}, got {outside}")
    if draft.vocab_hash not in (0, target.vocab_hash):
        of = draft.target_name or "another target"
        found.append(
            f"vocabulary: the target's has hash {target.vocab_hash:016x}, "
            f"the drafter was converted for {of} with hash {draft.vocab_hash:016x}"
        )
    return found


def check_pair(draft: DraftFacts, target: TargetFacts) -> None:
    """Raises:
    IncompatibleModelsError: names both files, and every size that differs.
    """
    found = mismatches(draft, target)
    if found:
        raise IncompatibleModelsError(
            f"{draft.path} does not fit {target.path}: {'; '.join(found)}; "
            f"use the drafter's own target, or convert it again with --target {target.path}"
        )

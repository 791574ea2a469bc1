"""An own embedding and head for files that cannot share the target's unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from convert_error import ConvertError
from gguf_schema import D2T, OUTPUT, TENSORS, TOKEN_EMBD
from hf_config import DrafterConfig
from numpy.typing import NDArray
from target_info import Target
from tensor_map import MappedTensor
from tensor_source import TensorSource, replace_row, select_rows, token_ids
from torch_pickle import load_mask_embedding

MASK_EMBEDDING_NAME = "mask_embedding.pt"
MAX_COUNTS_BYTES = 64 << 20


def _target_matrix(target: Target, name: str, config: DrafterConfig, why: str) -> TensorSource:
    source = target.find_matrix(name)
    if source is None:
        raise ConvertError(f"{target.path}: expected {name}, {why}; pass the target's GGUF file")
    if source.shape != (config.n_vocab, config.n_embd):
        raise ConvertError(
            f"{source.where}: expected shape {[config.n_vocab, config.n_embd]}, "
            f"got {list(source.shape)}"
        )
    return source


def read_counts(path: Path, n_vocab: int) -> NDArray[np.int64]:
    """How often each token occurs: a .npy array or one integer a line, (n_vocab,)."""
    if not path.is_file() or path.stat().st_size > MAX_COUNTS_BYTES:
        raise ConvertError(f"{path}: expected a file of {n_vocab} counts, found none")
    try:
        if path.suffix == ".npy":
            counts = np.load(path, allow_pickle=False)
        else:
            counts = np.array(path.read_text(encoding="ascii").split(), dtype=np.int64)
    except (ValueError, OverflowError, EOFError) as e:
        raise ConvertError(f"{path}: expected {n_vocab} integers, {e}") from e
    if counts.shape != (n_vocab,) or counts.dtype.kind not in "iu":
        raise ConvertError(
            f"{path}: expected {n_vocab} integers, got {counts.dtype} {list(counts.shape)}"
        )
    result: NDArray[np.int64] = counts.astype(np.int64)
    if result.min() < 0:
        raise ConvertError(f"{path}: expected counts from 0 to 2^63 - 1, got others")
    return result


def most_frequent(counts: NDArray[np.int64], n_rows: int) -> list[int]:
    """The n_rows most frequent token ids in ascending order; of equals the lower id wins."""
    order = np.argsort(-counts, kind="stable")
    return sorted(order[:n_rows].tolist())


def _in_file_order(tensors: dict[str, TensorSource]) -> list[MappedTensor]:
    whole = [spec.name for spec in TENSORS if spec.name in tensors]
    layers = [name for name in tensors if name not in whole]
    return [MappedTensor(name, tensors[name]) for name in whole + layers]


def complete_head(
    tensors: list[MappedTensor],
    config: DrafterConfig,
    target: Target,
    *,
    mask_embedding: Path,
    head_rows: int | None,
    head_counts: Path | None,
) -> list[MappedTensor]:
    """Adds the embedding and head rows that sharing the target's would get wrong.

    - a mask_embedding.pt replaces the mask token's row of the embedding, so the file needs its own;
    - llama.cpp takes an own embedding without an own head as both, so the head is written too;
    - head_rows keeps only the most frequent rows of the head, with d2t naming their tokens.
    """
    found: dict[str, TensorSource] = {t.name: t.source for t in tensors}
    tied = found.get(TOKEN_EMBD) if config.tied_embeddings else None

    def head(why: str) -> TensorSource:
        return found.get(OUTPUT) or tied or _target_matrix(target, OUTPUT, config, why)

    if mask_embedding.is_file():
        row = load_mask_embedding(mask_embedding, config.mask_token_id, config.n_embd)
        why = f"to be patched with {mask_embedding.name}"
        base = found.get(TOKEN_EMBD) or _target_matrix(target, TOKEN_EMBD, config, why)
        found[OUTPUT] = head(why)
        found[TOKEN_EMBD] = replace_row(base, config.mask_token_id, row)
    elif TOKEN_EMBD in found:
        found[OUTPUT] = head("the drafter brings an embedding without a head")
    if head_rows is None and head_counts is not None:
        raise ConvertError("head_counts: expected head_rows with it, got none; pass --head-rows")
    if head_rows is not None:
        _reduce_head(found, config, head, head_rows, head_counts)
    return _in_file_order(found)


def _reduce_head(
    found: dict[str, TensorSource],
    config: DrafterConfig,
    head: Callable[[str], TensorSource],
    n_rows: int,
    counts_path: Path | None,
) -> None:
    if counts_path is None:
        raise ConvertError("head_rows: expected head_counts with it, got none; pass --head-counts")
    if D2T in found:
        raise ConvertError(f"head_rows: the drafter's head has {config.n_vocab_draft} rows already")
    least = config.selector.top_k if config.selector else 1
    if not least <= n_rows < config.n_vocab:
        raise ConvertError(
            f"head_rows: expected {least} to {config.n_vocab - 1} rows, got {n_rows}"
        )
    ids = most_frequent(read_counts(counts_path, config.n_vocab), n_rows)
    found[OUTPUT] = select_rows(head("to be reduced"), ids)
    found[D2T] = token_ids(np.array(ids, np.int64), config.n_vocab, str(counts_path))

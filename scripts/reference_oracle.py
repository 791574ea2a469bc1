"""The published torch implementation of DFlash 2 (PyPI dflash) as an oracle, in F32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers
from dflash.model import DFlash2DraftModel, _crop_to, _draft_value, _make_cache
from reference_cases import N_SPARE, Block, Floats, Round
from torch.nn import functional as F


class Oracle:
    """Drafts round by round from a checkpoint and the target's embedding and head.

    embedding, head: (n_vocab, n_embd).
    """

    def __init__(self, checkpoint: Path, embedding: Floats, head: Floats) -> None:
        transformers.utils.logging.disable_progress_bar()
        model, info = DFlash2DraftModel.from_pretrained(
            str(checkpoint), dtype=torch.float32, output_loading_info=True
        )
        lost = [name for names in info.values() for name in names]
        if lost:  # transformers would fill them with random values
            raise ValueError(f"{checkpoint}: expected every tensor to be loaded, lost {lost}")
        self.model = model.eval()
        self.embedding = torch.from_numpy(embedding)
        self.head = torch.from_numpy(head)
        self.reset()

    def reset(self) -> None:
        self.cache = _make_cache(self.model.config)
        self.start: int | None = None  # position of the first row in the cache

    @torch.inference_mode()
    def draft(self, round: Round) -> Block:
        """Injects the round's features and drafts after its anchor."""
        if self.start is None:
            self.start = round.position - len(round.features)
        hidden = self._hidden(round, self.cache)
        _crop_to(self.cache, round.position - self.start)
        return self._block(hidden, round.anchor)

    @torch.inference_mode()
    def hidden_from_scratch(self, round: Round) -> Floats:
        """The final hidden rows when round.features is the whole context; keeps no state."""
        return np.asarray(self._hidden(round, None)[0])

    def _hidden(self, round: Round, cache: transformers.DynamicCache | None) -> torch.Tensor:
        model = self.model
        ids = torch.tensor([round.anchor] + [model.mask_token_id] * round.n_draft)
        scale = float(_draft_value(model.config, "input_embedding_scale", 1.0))
        first, end = round.position - len(round.features), round.position + len(ids)
        hidden = model(
            target_hidden=torch.from_numpy(round.features)[None],
            noise_embedding=F.embedding(ids, self.embedding)[None] * scale,
            position_ids=torch.arange(first, end)[None],
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return hidden[:, 1:]

    def _head(self, rows: torch.Tensor) -> torch.Tensor:
        return F.linear(rows, self.head)

    def _block(self, hidden: torch.Tensor, anchor: int) -> Block:
        """The reference scores one predecessor per position; here all k x k edges are scored."""
        path, _, _ = self.model.propose(hidden, torch.tensor([anchor]), self._head, temperature=0.0)
        selector = self.model.candidate_selector
        k = selector.top_k
        logits, ids = self.model.compute_logits(hidden, self._head)[0].topk(
            k + N_SPARE
        )  # (n_pos, r)
        cand = ids[:, :k]
        projected = selector.hidden_projection(hidden)[0]  # (n_pos, rank)
        before = torch.cat([torch.full((1, k), anchor), cand[:-1]])  # (n_pos, from)
        score = logits[:, None, :k] + torch.einsum(
            "pfr,ptr->pft",
            selector.predecessor_codebook(before) * projected[:, None],
            selector.successor_codebook(cand),
        )
        score[0, 1:] = 0.0  # position 0 has one predecessor, the anchor
        block = Block(
            hidden=np.asarray(hidden[0]),
            ids=ids.numpy().astype(np.int32),
            logits=np.asarray(logits),
            score=np.asarray(score),
            path=path[0].numpy().astype(np.int32),
        )
        _check_path(block)
        return block


def _check_path(block: Block) -> None:
    """The walk over the k x k edges must be the path that the reference itself took."""
    from_ = 0
    for i, token in enumerate(block.path):
        from_ = int(block.score[i, from_].argmax())
        if block.ids[i, from_] != token:
            raise AssertionError(
                f"position {i}: the edge scores lead to token {block.ids[i, from_]}, "
                f"the reference took {token}"
            )

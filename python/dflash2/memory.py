"""What a drafter takes beside its target, planned from its header before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from dflash2.gguf_info import GgufInfo

KV_BYTES = 2  # F16
FEATURE_BYTES = 4  # F32
CONTEXT = 256  # libllama rounds a context up to a multiple
CELLS = 256  # cells are allocated in such steps
STAGED = 64  # rows of a sequence that wait to be injected
PIECE = 512  # rows of a prompt that an accelerator injects at once; a CPU: STAGED
SLACK = 64  # positions by which a sequence can be cut back with its window still whole


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Bytes. weights, draft_kv and staged (hidden states to be injected): on device.

    capture: hidden states of the target, on the host.
    target: the target's weights, 0 without one; their device is a matter of --n-gpu-layers.
    """

    device: str
    n_ctx: int
    n_parallel: int
    n_batch: int
    weights: int
    draft_kv: int
    staged: int
    capture: int
    target: int

    def by_device(self) -> dict[str, int]:
        """Bytes of the drafter on each device."""
        plan = {self.device: self.weights + self.draft_kv + self.staged}
        plan["CPU"] = plan.get("CPU", 0) + self.capture
        return plan


def draft_cells(n_ctx: int, block_size: int, window: int) -> int:
    """Cells of one sequence in one layer. window: 0 for full attention.

    A sliding layer keeps a ring as wide as its window, whatever the context; the block and one
    cell for rows that nobody reads come on top.
    """
    n_ring = min(max(1, window - 1) + SLACK, n_ctx) if window else n_ctx
    return -(-(n_ring + block_size + 1) // CELLS) * CELLS


def plan_memory(
    draft: GgufInfo,
    target: GgufInfo | None = None,
    *,
    device: str = "CPU",
    n_ctx: int = 4096,
    n_parallel: int = 1,
    n_batch: int = 512,
) -> MemoryPlan:
    """The plan of our engine for a well-formed DFlash 2 drafter. n_ctx: of one request."""
    n_ctx = -(-n_ctx // CONTEXT) * CONTEXT
    n_layer = draft.integer("dflash.block_count")
    window = draft.integer("dflash.attention.sliding_window")
    pattern = draft.items("dflash.attention.sliding_window_pattern")
    n_sliding = min(sum(map(bool, pattern)), n_layer) if window else 0
    block_size = draft.integer("dflash.block_size")
    cells = n_sliding * draft_cells(n_ctx, block_size, window)
    cells += (n_layer - n_sliding) * draft_cells(n_ctx, block_size, 0)
    head_dim = draft.integer("dflash.attention.key_length")
    row = 2 * head_dim * draft.integer("dflash.attention.head_count_kv") * KV_BYTES  # K and V
    n_taps = len(draft.items("dflash.target_layers"))
    feature = n_taps * draft.integer("dflash.embedding_length") * FEATURE_BYTES
    piece = STAGED if device == "CPU" else PIECE
    n_rows = max(n_batch, n_parallel * block_size)
    return MemoryPlan(
        device=device,
        n_ctx=n_ctx,
        n_parallel=n_parallel,
        n_batch=n_batch,
        weights=sum(t.n_bytes for t in draft.tensors),
        draft_kv=cells * row * n_parallel,
        staged=(STAGED * n_parallel + piece + 1) * feature,
        capture=n_rows * feature,
        target=sum(t.n_bytes for t in target.tensors) if target else 0,
    )

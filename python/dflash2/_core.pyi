"""Compiled part of dflash2. Import it through dflash2._native only, which loads libllama first."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypedDict, overload

import numpy as np
from numpy.typing import NDArray

__version__: str

class DFlash2Error(RuntimeError): ...
class ModelFormatError(DFlash2Error, ValueError): ...
class IncompatibleModelsError(DFlash2Error, ValueError): ...
class ContextFullError(DFlash2Error): ...
class DecodeError(DFlash2Error): ...

# errc::file raises OSError, errc::argument ValueError, errc::memory MemoryError.

def drain_log() -> list[tuple[int, str]]:
    """Log lines of libllama and ggml since the last call: (logging level, text)."""

class _HParams(TypedDict):
    """See draft-model.h."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_rot: int
    n_vocab: int
    n_ctx_train: int
    rms_eps: float
    rope_freq_base: float
    logit_scale: float
    logit_softcap: float
    embedding_scale: float
    causal: bool
    sliding_window: int
    is_sliding: list[bool]
    block_size: int
    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int
    mask_token_id: int
    target_layers: list[int]
    context_window: int

class _Pairing(TypedDict):
    """What the converter recorded about the target; "" or 0 in files of other converters."""

    target_name: str
    target_n_layer: int
    vocab_hash: int

class MemoryUse:
    """Bytes for one purpose on one device; see memory.h."""

    @property
    def what(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def mapped(self) -> bool:
        """Pages of a file: the system takes them back when it needs them."""

def require_memory(uses: Sequence[MemoryUse], *, free: Callable[[str], int] | None = ...) -> None:
    """Raises MemoryError when a device has less memory than is used on it.

    free: bytes by device; None: what ggml says, which on the CPU is all of its memory.
    """

def free_memory(device: str) -> int:
    """Free bytes of a device, as ggml says; 0: unknown."""

class DraftModel:
    """Hyper-parameters and weights of a drafter GGUF."""

    def __init__(self, path: str | bytes, device: str = ..., *, plan_only: bool = ...) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def hparams(self) -> _HParams: ...
    @property
    def pairing(self) -> _Pairing: ...
    @property
    def has_head(self) -> bool: ...
    @property
    def has_embd(self) -> bool: ...
    @property
    def size_bytes(self) -> int: ...

class Lattice:
    """Candidates and edge scores of one draft pass."""

    def __init__(self, cand: NDArray[np.int32], score: NDArray[np.float32]) -> None:
        """cand: (n_pos, top_k); score: (n_pos, from, to), both top_k wide.

        Position 0 reads from = 0 only.
        """
    @property
    def cand(self) -> NDArray[np.int32]: ...
    @property
    def score(self) -> NDArray[np.float32]: ...

class Drafter:
    """Base class; subclasses in Python implement every method (see engine.h)."""

    def __init__(self) -> None: ...
    def truncate(self, seq: int, n_keep: int) -> bool: ...
    def inject(self, seq: int, features: NDArray[np.float32], position: int) -> None:
        """features: (n_rows, n_taps, n_embd)."""
    def draft(self, jobs: Sequence[tuple[int, int, int]], n_draft: int) -> list[Lattice]:
        """jobs: (seq, anchor, position), one lattice each."""
    def max_draft(self) -> int: ...
    def n_seq(self) -> int: ...
    def context_window(self) -> int: ...
    def target_layers(self) -> list[int]: ...

_Operand: TypeAlias = tuple[str, tuple[int, int, int, int], bool]  # type, ne, contiguous rows
_Node: TypeAlias = tuple[  # op, result, sources, op_params
    str, _Operand, tuple[_Operand, ...], tuple[int, ...]
]

class GraphDrafter(Drafter):
    """The draft graph on a ggml backend."""

    @overload
    def __init__(
        self,
        model: DraftModel,
        target: Target,
        *,
        n_ctx: int = ...,
        n_threads: int = ...,
        kv_f32: bool = ...,
        top_k_by_groups: bool | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        model: DraftModel,
        *,
        n_ctx: int = ...,
        n_seq: int = ...,
        n_threads: int = ...,
        kv_f32: bool = ...,
    ) -> None:
        """For drafter files with their own embedding and head."""
    def last_hidden(self, seq: int = ...) -> NDArray[np.float32]:
        """Hidden states of a sequence's last draft after the final norm, (n_draft, n_embd)."""
    def watch(self, names: Sequence[str]) -> None:
        """Copies these nodes in every later draft; see drafter.h for their names."""
    def watched(self) -> dict[str, NDArray[np.float32]]:
        """By name, dimensions in the opposite order of ggml's; empty: not computed."""
    def ops(self, n_seq: int, n_draft: int) -> list[_Node]:
        """Nodes of the graph that drafts now, views left out; n_draft 0: that injects only."""
    @property
    def cache_bytes(self) -> int:
        """Size of the draft K/V."""
    @property
    def memory(self) -> list[MemoryUse]:
        """Planned: with as many graphs as are ever kept, of the largest shape."""
    @property
    def graphs_built(self) -> int:
        """Graphs built and allocated, one for each shape that is not kept."""
    @property
    def graph_passes(self) -> int:
        """Drafts and injections; all but the first of a graph replay it."""

class Target:
    """The target model on libllama."""

    def __init__(
        self,
        path: str | bytes,
        *,
        n_ctx: int = ...,
        n_seq: int = ...,
        n_batch: int = ...,
        n_rollback: int = ...,
        n_threads: int = ...,
        n_gpu_layers: int = ...,
        backend_sampling: bool | None = ...,
        plan_only: bool = ...,
    ) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def n_ctx(self) -> int: ...
    @property
    def n_batch(self) -> int: ...
    @property
    def n_seq(self) -> int: ...
    @property
    def n_rollback(self) -> int:
        """Positions that can always be taken back; 0: the model cannot verify drafts."""
    @property
    def n_vocab(self) -> int: ...
    @property
    def n_embd(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    @property
    def n_threads(self) -> int: ...
    @property
    def description(self) -> str: ...
    @property
    def head_device(self) -> str:
        """ggml's name of the device that the output head lies on."""
    @property
    def memory(self) -> list[MemoryUse]: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> int: ...
    @property
    def vocab_hash(self) -> int: ...
    def tokenize(
        self, text: str | bytes, *, add_special: bool = ..., parse_special: bool = ...
    ) -> list[int]: ...
    def piece(self, token: int, *, special: bool = ...) -> bytes: ...
    def is_eog(self, token: int) -> bool: ...
    def set_taps(self, layers: Sequence[int]) -> None: ...
    def decode(
        self, tokens: Sequence[int], position: int, *, seq: int = ..., all_logits: bool = ...
    ) -> None: ...
    def logits(self, row: int) -> NDArray[np.float32]:
        """A copy of row `row` of the last decode, (n_vocab,)."""
    def tapped(self) -> NDArray[np.float32]:
        """A copy of the tapped rows of the last decode, (n_rows, n_taps, n_embd)."""
    def truncate(self, n_keep: int, *, seq: int = ...) -> None: ...

class Request:
    prompt: list[int]
    temperature: float
    top_k: int
    typical_p: float
    top_p: float
    min_p: float
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    repeat_last_n: int
    logit_bias: dict[int, float]
    grammar: str
    seed: int
    max_tokens: int
    stop: list[str]
    n_draft_max: int
    ignore_eos: bool
    def __init__(self) -> None: ...

class Token:
    @property
    def id(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def from_draft(self) -> bool: ...

class Stats:
    """Counters; see stats.h."""

    @property
    def n_prompt(self) -> int: ...
    @property
    def n_cached(self) -> int: ...
    @property
    def n_generated(self) -> int: ...
    @property
    def n_rounds(self) -> int: ...
    @property
    def n_drafts(self) -> int: ...
    @property
    def n_drafted(self) -> int: ...
    @property
    def n_verified(self) -> int: ...
    @property
    def n_accepted(self) -> int: ...
    @property
    def accepted_per_pos(self) -> list[int]: ...
    @property
    def ms_prompt(self) -> float: ...
    @property
    def ms_draft(self) -> float: ...
    @property
    def ms_verify(self) -> float: ...
    @property
    def ms_sample(self) -> float: ...
    @property
    def mean_accept_length(self) -> float: ...
    @property
    def acceptance_rate(self) -> float: ...

class Progress:
    """What one step did for one request."""

    @property
    def id(self) -> int: ...
    @property
    def tokens(self) -> list[Token]: ...
    @property
    def finish_reason(self) -> str | None:
        """None while running, then "stop", "length", "context" or "dead_end"."""

class Engine:
    """The round loop; see engine.h."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        *,
        n_draft_max: int = ...,
        p_min: float = ...,
        draft_temperature: float = ...,
        accept_rule: str = ...,
        clock: Callable[[], float] | None = ...,
    ) -> None:
        """clock: ms, for the choice of lengths; None: the steady clock."""
    def submit(self, request: Request) -> int: ...
    def step(self) -> list[Progress]:
        """Releases the GIL; Ctrl-C is honoured between target passes."""
    def cancel(self, id: int) -> None: ...
    @property
    def idle(self) -> bool: ...
    @property
    def n_draft_max(self) -> int: ...
    def request_stats(self, id: int) -> Stats:
        """A copy."""
    @property
    def total_stats(self) -> Stats:
        """A copy."""

class TextStream:
    def __init__(self, stop: Sequence[str] = ...) -> None: ...
    def push(self, piece: bytes) -> str: ...
    def finish(self) -> str: ...
    @property
    def stopped(self) -> bool: ...

# Pure logic, bound for the statistical tests.
_Law: TypeAlias = list[tuple[int, float]]

def uniform(seed: int, sequence: int, stream: str, position: int, round: int = ...) -> float: ...
def draw(law: _Law, u: float) -> int: ...
def residual(p: _Law, q: _Law) -> _Law: ...
def walk_greedy(lattice: Lattice, p_min: float = ...) -> tuple[list[int], list[_Law]]: ...
def walk_sample(
    lattice: Lattice, temperature: float, seed: int, sequence: int, position: int, round: int = ...
) -> tuple[list[int], list[_Law]]: ...
def verify_rejection(
    tokens: Sequence[int],
    q: Sequence[_Law],
    p: Callable[[int], _Law],
    seed: int,
    sequence: int,
    position: int,
) -> tuple[int, int]: ...
def list_devices() -> list[tuple[str, str, str]]:
    """(name, description, kind) of the ggml devices; kind: "cpu", "gpu" or "accelerator"."""

def read_gguf(path: str | bytes) -> tuple[dict[str, Any], list[tuple[str, list[int], str, int]]]:
    """The header of any GGUF file: metadata by key, and tensors.

    Tensors: (name, ggml-order shape, type, bytes). Bytes that are not UTF-8 become surrogates.
    """

# Quantization by ggml and llama-quantize's choices.
def quantize(
    data: NDArray[np.float32],
    type: str,
    n_threads: int = ...,
    *,
    imatrix: NDArray[np.float32] | None = ...,
) -> NDArray[np.uint8]:
    """data: (rows, columns), columns a multiple of the type's block size. imatrix: (columns,).

    Returns (rows, bytes per row). type: a ggml type name ("q4_K", "q8_0", "bf16", ...).
    """

def quantize_types(
    ftype: str,
    tensors: Sequence[tuple[str, Sequence[int]]],
    *,
    n_embd: int,
    n_ff: int,
    n_layer: int,
    n_head: int,
    n_head_kv: int,
    head_dim: int,
    has_imatrix: bool = ...,
) -> list[str | None]:
    """What llama-quantize would do with each tensor (name, ggml-order shape) of a `dflash` file.

    ftype: "Q4_K_M", ... Give all tensors of the file, in any order. has_imatrix: with --imatrix.
    Returns ggml type names; None: the tensor keeps its type.
    """

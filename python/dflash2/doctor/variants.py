"""Drafters that differ from a file in one thing: when one of them drafts better, the file is wrong.

Rows of tensors as the draft graph reads them (see FORMAT in ggml_dflash2/src/draft/schema.h).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash2._native import core
from dflash2.doctor import masks
from dflash2.doctor.gguf_file import Edit, GgufFile, TensorData
from dflash2.gguf_raw import Value, bool_array, boolean, f32, i32_array, u32

WINDOWS = (256, 512, 640, 1024, 2048, 4096)

TAPS = "dflash.target_layers"
WINDOW = "dflash.attention.sliding_window"
PATTERN = "dflash.attention.sliding_window_pattern"
ROPE_BASE = "dflash.rope.freq_base"
MASK = "tokenizer.ggml.mask_token_id"
EMBEDDING_SCALE = "dflash.embedding_scale"
LOGIT_SCALE = "dflash.logit_scale"
SOFTCAP = "dflash.final_logit_softcapping"
CAUSAL = "dflash.attention.causal"
HIDDEN_NORM, OUTPUT_NORM = "enc.output_norm.weight", "output_norm.weight"
PREDECESSOR, SUCCESSOR = "selector_predecessor.weight", "selector_successor.weight"
SELECTOR_HIDDEN = "selector_hidden.weight"
SELECTOR_OFF = "selector off"


@dataclass(frozen=True)
class Variant:
    """A drafter to try.

    Args:
        name: what is changed.
        topic: the stage; variants of one topic are alternatives.
        fault: what is wrong with the file if this drafts better.
        edit: makes the change; called when the variant is tried.
    """

    name: str
    topic: str
    fault: str
    edit: Callable[[], Edit]


def variants(
    file: GgufFile, hparams: core._HParams, target: core.Target, n_context: int
) -> list[Variant]:
    """Every variant that can differ from the file.

    Args:
        n_context: longest text of the trial; wider windows than that are not told apart.
    """
    make = _Maker(file, dict(hparams), target, n_context)
    return [
        *make.taps(), *make.norms(), *make.conv(), *make.selector(), *make.masks(), *make.rope(),
        *make.window(), *make.scales(), *make.layers(),
    ]  # fmt: skip


def taps_of(tries: Sequence[Variant], hparams: core._HParams) -> list[int]:
    """Every target layer that the file or a variant taps, in order."""
    layers = set(hparams["target_layers"])
    for variant in tries:
        if variant.topic == "taps" and (value := variant.edit().values[TAPS]) is not None:
            layers.update(value.integers())
    return sorted(layers)


def rope_base(target: core.Target) -> float | None:
    """None when the target's file does not say."""
    metadata = target.metadata
    stored = metadata.get(f"{metadata.get('general.architecture')}.rope.freq_base")
    return float(stored) if stored else None


@dataclass(frozen=True)
class _Maker:
    file: GgufFile
    hp: dict[str, Any]
    target: core.Target
    n_context: int

    def taps(self) -> Iterator[Variant]:
        layers = list(self.hp["target_layers"])
        for shift in (-1, 1):
            moved = [layer + shift for layer in layers]
            if min(moved) >= 0 and max(moved) < self.target.n_layer:
                side = "high" if shift < 0 else "low"
                yield Variant(
                    f"taps shifted by {shift:+d}",
                    "taps",
                    f"the tapped layers are one too {side}: {layers}, expected {moved}",
                    _values({TAPS: i32_array(tuple(moved))}),
                )
        orders = [layers[::-1]]
        for i in range(len(layers)):
            for j in range(i + 1, len(layers)):
                order = list(layers)
                order[i], order[j] = order[j], order[i]
                orders.append(order)
        for order in _distinct(orders, layers):
            yield Variant(
                f"taps in the order {order}",
                "taps",
                f"the tapped layers are permuted: expected {order}, the file has {layers}",
                _values({TAPS: i32_array(tuple(order))}),
            )

    def norms(self) -> Iterator[Variant]:
        ones = np.ones((1, self.hp["n_embd"]), np.float32).view(np.uint8)
        of = self.file.data(HIDDEN_NORM)
        yield Variant(
            "hidden_norm all ones",
            "hidden_norm",
            f"{HIDDEN_NORM} does harm: its values are not the trained ones",
            partial(Edit, tensors={HIDDEN_NORM: TensorData(of.type_id, ones)}),
        )
        yield Variant(
            "hidden_norm and final norm swapped",
            "hidden_norm",
            f"{HIDDEN_NORM} and {OUTPUT_NORM} are swapped",
            self._swapped(HIDDEN_NORM, OUTPUT_NORM),
        )

    def conv(self) -> Iterator[Variant]:
        if self.hp["conv_kernel_size"] > 1:
            yield Variant(
                "conv taps reversed",
                "conv",
                "the taps of the convolutions are stored in the opposite order",
                partial(self._conv, lambda x: x[:, ::-1]),
            )
        yield Variant(
            "conv before and after swapped",
            "conv",
            "the convolutions before and after the sublayers are swapped",
            partial(self._conv, lambda x: x[::-1]),
        )

    def selector(self) -> Iterator[Variant]:
        yield Variant(
            "codebooks swapped",
            "selector",
            "the selector's predecessor and successor codebooks are swapped",
            self._swapped(PREDECESSOR, SUCCESSOR),
        )
        yield Variant(
            SELECTOR_OFF,
            "selector",
            "the selector does harm: its codebooks or its projection are not the trained ones",
            partial(self._zeroed, (SELECTOR_HIDDEN,)),
        )

    def masks(self) -> Iterator[Variant]:
        now = self.hp["mask_token_id"]
        for token, text, n_alike in masks.candidates(self.file, self.target, now):
            alike = f" or one of {n_alike} tokens embedded alike" if n_alike else ""
            yield Variant(
                f"mask token {token} {text}",
                "mask",
                f"the mask token is wrong: {token} {text}{alike} drafts better than {now}",
                _values({MASK: u32(token)}),
            )

    def rope(self) -> Iterator[Variant]:
        now = self.hp["rope_freq_base"]
        of_target = rope_base(self.target) or now
        for base in sorted({of_target, now * 10, now / 10, 1e4, 1e6, 1e7} - {now}):
            same = " (the target's)" if base == of_target else ""
            yield Variant(
                f"RoPE base {base:g}{same}",
                "rope",
                f"the RoPE base is wrong: {base:g}{same} drafts better than {now:g}",
                _values({ROPE_BASE: f32(base)}),
            )
        for name, inverse in (("split", False), ("interleaved", True)):
            yield Variant(
                f"q and k rows regrouped, {name}",
                "rope",
                "rows of q and k are permuted for another kind of RoPE "
                "(interleaved pairs against split halves)",
                partial(self._regrouped, inverse),
            )

    def window(self) -> Iterator[Variant]:
        now = self.hp["sliding_window"]
        n_layer = self.hp["n_layer"]
        wanted = {now // 2, now * 2} if now else set(WINDOWS)
        for window in sorted(wanted):
            if self.hp["block_size"] * 2 <= window < self.n_context:
                yield Variant(
                    f"window {window}",
                    "window",
                    f"the sliding window is wrong: {window} drafts better than {now or 'none'}",
                    _values({WINDOW: u32(window), PATTERN: bool_array((True,) * n_layer)}),
                )
        if now and now < self.n_context:
            yield Variant(
                "no window",
                "window",
                f"the sliding window of {now} does harm",
                _values({WINDOW: None, PATTERN: None}),
            )

    def scales(self) -> Iterator[Variant]:
        now = self.hp["embedding_scale"]
        for scale in _others((1.0, math.sqrt(self.hp["n_embd"])), now):
            yield Variant(
                f"embedding scale {scale:g}",
                "embedding scale",
                f"the embedding scale is wrong: {scale:g} drafts better than {now:g}",
                _values({EMBEDDING_SCALE: f32(scale)}),
            )
        now = self.hp["logit_scale"]
        for scale in _others((1.0, now / 4, now / 2, now * 2, now * 4), now):
            yield Variant(
                f"logit scale {scale:g}",
                "logit scale",
                f"the logit scale is wrong: {scale:g} drafts better than {now:g}",
                _values({LOGIT_SCALE: f32(scale)}),
            )
        if self.hp["logit_softcap"] > 0:
            yield Variant(
                "no softcap",
                "logit scale",
                f"the logit softcap of {self.hp['logit_softcap']:g} does harm",
                _values({SOFTCAP: None}),
            )

    def layers(self) -> Iterator[Variant]:
        causal = not self.hp["causal"]
        yield Variant(
            f"block {'causal' if causal else 'not causal'}",
            "attention",
            f"attention inside the block must{'' if causal else ' not'} be causal",
            _values({CAUSAL: boolean(causal)}),
        )
        for i in range(self.hp["n_layer"]):
            yield Variant(
                f"layer {i} skipped",
                "layers",
                f"layer {i} does harm: its tensors are not the trained ones",
                partial(self._zeroed, (f"blk.{i}.attn_output.weight", f"blk.{i}.ffn_down.weight")),
            )

    # -- edits

    def _swapped(self, a: str, b: str) -> Callable[[], Edit]:
        return lambda: Edit(tensors={a: self.file.data(b), b: self.file.data(a)})

    def _zeroed(self, names: Sequence[str]) -> Edit:
        data = {name: self.file.data(name) for name in names}
        return Edit(
            tensors={n: TensorData(t.type_id, np.zeros_like(t.rows)) for n, t in data.items()}
        )

    def _conv(self, order: Callable[[NDArray[Any]], NDArray[Any]]) -> Edit:
        """order: of the axes (side, tap, ...)."""
        tensors = {}
        for name in self.file.names:
            if name.endswith(("_conv_base", "_conv_proj.weight")):
                data = self.file.data(name)
                rows = data.rows.reshape(2, self.hp["conv_kernel_size"], -1, data.rows.shape[1])
                tensors[name] = TensorData(data.type_id, order(rows).reshape(data.rows.shape))
        return Edit(tensors=tensors)

    def _regrouped(self, inverse: bool) -> Edit:
        """Rows of a head from interleaved pairs to split halves, or back."""
        n_rot, head_dim = self.hp["n_rot"], self.hp["head_dim"]
        order = np.concatenate([np.arange(0, n_rot, 2), np.arange(1, n_rot, 2)])
        order = np.concatenate(
            [np.argsort(order) if inverse else order, np.arange(n_rot, head_dim)]
        )
        tensors = {}
        for name in self.file.names:
            if name.endswith(("attn_q.weight", "attn_k.weight")):
                data = self.file.data(name)
                rows = data.rows.reshape(-1, head_dim, data.rows.shape[1])[:, order]
                tensors[name] = TensorData(data.type_id, rows.reshape(data.rows.shape))
            elif name.endswith(("attn_q_norm.weight", "attn_k_norm.weight")):
                data = self.file.data(name)
                rows = data.rows.reshape(head_dim, -1)[order]
                tensors[name] = TensorData(data.type_id, rows.reshape(data.rows.shape))
        return Edit(tensors=tensors)


def _values(values: dict[str, Value | None]) -> Callable[[], Edit]:
    return partial(Edit, values=values)


def _others(values: Sequence[float], now: float) -> list[float]:
    return [v for v in dict.fromkeys(values) if not math.isclose(v, now, rel_tol=1e-3)]


def _distinct(orders: list[list[int]], now: list[int]) -> list[list[int]]:
    seen = dict.fromkeys(tuple(order) for order in orders)
    return [list(order) for order in seen if list(order) != now]

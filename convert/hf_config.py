"""Drafter config.json, normalised. The only place that knows Hugging Face keys and defaults."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convert_error import ConvertError

MAX_CONFIG_BYTES = 16 << 20

# architectures (or speculators_model_type) -> family. Adding a layout is adding a row.
DFLASH = "dflash"
DFLASH2 = "dflash2"
ARCHITECTURES: Mapping[str, str] = {
    "DFlashDraftModel": DFLASH,
    "DFlash2DraftModel": DFLASH2,
}


@dataclass(frozen=True)
class Selector:
    """Sizes of DFlash 2's convolutions and candidate selector."""

    kernel_size: int
    group_size: int
    rank: int
    top_k: int


@dataclass(frozen=True)
class DrafterConfig:
    """What the GGUF file needs to know about a drafter, whatever layout it came in."""

    architecture: str
    family: str  # DFLASH or DFLASH2
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_ctx_train: int
    rms_eps: float
    rope_theta: float
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]  # 0-based layers whose *output* is tapped
    n_target_layers: int | None
    causal: bool | None
    sliding_window: int | None
    sliding_layers: tuple[bool, ...]  # per layer; empty without a window
    selector: Selector | None
    logit_scale: float | None
    logit_softcap: float | None
    embedding_scale: float | None

    @property
    def n_taps(self) -> int:
        return len(self.target_layer_ids)


class _Scopes:
    """Looks keys up in nested dictionaries, innermost first, and checks what it finds."""

    def __init__(self, where: str, scopes: Sequence[Mapping[str, Any]]) -> None:
        self._where = where
        self._scopes = scopes

    def error(self, key: str, expected: str, got: object, hint: str = "") -> ConvertError:
        found = "nothing" if got is None else repr(got)
        return ConvertError(f"{self._where}: {key}: expected {expected}, got {found}{hint}")

    def find(self, *keys: str) -> Any:
        for key in keys:
            for scope in self._scopes:
                if scope.get(key) is not None:
                    return scope[key]
        return None

    def integer(self, *keys: str, low: int = 1, high: int = 2**31 - 1) -> int:
        value = self.find(*keys)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(keys[0], f"an integer from {low} to {high}", value)
        return value

    def maybe_int(self, *keys: str, low: int = 1) -> int | None:
        return None if self.find(*keys) is None else self.integer(*keys, low=low)

    def number(self, *keys: str) -> float:
        value = self.find(*keys)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise self.error(keys[0], "a finite number", value)
        return float(value)

    def positive(self, *keys: str) -> float:
        value = self.number(*keys)
        if value <= 0:
            raise self.error(keys[0], "a number above 0", value)
        return value

    def maybe_float(self, *keys: str) -> float | None:
        return None if self.find(*keys) is None else self.number(*keys)

    def maybe_bool(self, *keys: str) -> bool | None:
        value = self.find(*keys)
        if value is not None and not isinstance(value, bool):
            raise self.error(keys[0], "true or false", value)
        return value

    def ints(self, *keys: str) -> tuple[int, ...]:
        value = self.find(*keys)
        if (
            not isinstance(value, list)
            or not 0 < len(value) <= 1024
            or any(isinstance(v, bool) or not isinstance(v, int) for v in value)
        ):
            raise self.error(keys[0], "a list of integers", value)
        return tuple(value)


def load_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ConvertError that names the file."""
    if not path.is_file():
        raise ConvertError(f"{path}: expected a file, found none")
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise ConvertError(f"{path}: expected at most {MAX_CONFIG_BYTES} bytes of JSON")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as e:
        raise ConvertError(f"{path}: expected JSON, {e}") from e
    if not isinstance(value, dict):
        raise ConvertError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _mapping(cfg: _Scopes, raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise cfg.error(key, "an object", value)
    return value


def _rope_theta(cfg: _Scopes, raw: Mapping[str, Any], where: str) -> float:
    rope = _mapping(cfg, raw, "rope_parameters") or _mapping(cfg, raw, "rope_scaling")
    scopes = _Scopes(where, (rope, raw))
    rope_type = scopes.find("rope_type", "type") or "default"
    if rope_type != "default":
        raise cfg.error("rope_type", "'default'", rope_type, "; this scaling is not supported")
    return scopes.positive("rope_theta")


def _sliding(cfg: _Scopes, n_layer: int) -> tuple[int | None, tuple[bool, ...]]:
    """(window, which layers slide)."""
    layer_types = cfg.find("layer_types")
    if layer_types is None:
        if cfg.maybe_bool("use_sliding_window"):
            raise cfg.error("layer_types", f"a list of {n_layer} layer types", None)
        return None, ()
    if not isinstance(layer_types, list) or len(layer_types) != n_layer:
        raise cfg.error("layer_types", f"a list of {n_layer} layer types", layer_types)
    for kind in layer_types:
        if kind not in ("sliding_attention", "full_attention"):
            raise cfg.error("layer_types", "'sliding_attention' or 'full_attention'", kind)
    if "sliding_attention" not in layer_types:
        return None, ()
    use = cfg.maybe_bool("use_sliding_window")
    if use is None:
        raise cfg.error("use_sliding_window", "true or false beside sliding layer_types", None)
    if not use:
        return None, ()
    return cfg.integer("sliding_window"), tuple(k == "sliding_attention" for k in layer_types)


def _causal(cfg: _Scopes, family: str, sliding: bool) -> bool | None:
    causal = cfg.maybe_bool("is_causal", "causal")
    if causal is None and family == DFLASH2:
        if sliding:
            raise cfg.error("is_causal", "true or false", None, "; it changes what a block sees")
        return False
    return causal


def _selector(cfg: _Scopes, n_embd: int) -> Selector:
    sel = Selector(
        kernel_size=cfg.integer("conv_kernel_size", high=64),
        group_size=cfg.integer("conv_group_size"),
        rank=cfg.integer("selector_rank"),
        top_k=cfg.integer("selector_top_k", high=1024),
    )
    if n_embd % sel.group_size != 0:
        raise cfg.error("conv_group_size", f"a divisor of hidden_size {n_embd}", sel.group_size)
    if n_embd < sel.top_k * (sel.top_k + 1):
        # llama.cpp packs the lattice of one position into a row of n_embd values
        raise cfg.error("selector_top_k", f"top_k * (top_k + 1) <= {n_embd}", sel.top_k)
    return sel


def parse_config(raw: Mapping[str, Any], where: str = "config.json") -> DrafterConfig:
    """Normalises a drafter's config.json.

    raw: the JSON object. where: how errors name it.
    Raises ConvertError that names the key when a load-bearing value is missing or impossible.
    """
    top = _Scopes(where, (raw,))
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or not all(isinstance(a, str) for a in architectures):
        raise top.error("architectures", "a list of names", architectures)
    architecture = next((a for a in architectures if a in ARCHITECTURES), None)
    if architecture is None:
        raise top.error("architectures", "one of " + ", ".join(ARCHITECTURES), architectures)
    family = ARCHITECTURES[architecture]

    cfg = _Scopes(where, (_mapping(top, raw, "dflash_config"), raw))
    n_embd = cfg.integer("hidden_size")
    n_layer = cfg.integer("num_hidden_layers", high=512)
    n_vocab = cfg.integer("vocab_size")
    n_head = cfg.integer("num_attention_heads")
    n_head_kv = cfg.integer("num_key_value_heads")
    head_dim = cfg.integer("head_dim")
    if n_head % n_head_kv != 0:
        raise cfg.error("num_key_value_heads", f"a divisor of {n_head} heads", n_head_kv)
    if head_dim % 2 != 0:
        raise cfg.error("head_dim", "an even number", head_dim)
    if cfg.maybe_bool("attention_bias"):
        raise cfg.error("attention_bias", "false", True, "; the dflash graph has no biases")
    if (act := cfg.find("hidden_act")) not in (None, "silu"):
        raise cfg.error("hidden_act", "'silu'", act)

    taps = cfg.ints("target_layer_ids")
    n_target_layers = cfg.maybe_int("num_target_layers")
    for tap in taps:
        if tap < 0 or (n_target_layers is not None and tap >= n_target_layers):
            raise cfg.error("target_layer_ids", f"layers of a {n_target_layers}-layer target", tap)
    window, sliding_layers = _sliding(cfg, n_layer)
    softcap = cfg.maybe_float("final_logit_softcapping")
    return DrafterConfig(
        architecture=architecture,
        family=family,
        n_layer=n_layer,
        n_embd=n_embd,
        n_ff=cfg.integer("intermediate_size"),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        n_vocab=n_vocab,
        n_ctx_train=cfg.integer("max_position_embeddings"),
        rms_eps=cfg.positive("rms_norm_eps"),
        rope_theta=_rope_theta(cfg, raw, where),
        block_size=cfg.integer("block_size", low=2, high=1024),
        mask_token_id=cfg.integer("mask_token_id", low=0, high=n_vocab - 1),
        target_layer_ids=taps,
        n_target_layers=n_target_layers,
        causal=_causal(cfg, family, any(sliding_layers)),
        sliding_window=window,
        sliding_layers=sliding_layers,
        selector=_selector(cfg, n_embd) if family == DFLASH2 else None,
        logit_scale=cfg.maybe_float("output_multiplier"),
        logit_softcap=softcap if softcap and softcap > 0 else None,
        embedding_scale=cfg.maybe_float("input_embedding_scale"),
    )

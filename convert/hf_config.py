"""Drafter config.json, normalised. The only place that knows Hugging Face keys and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from convert_error import ConvertError
from json_values import Values

DFLASH: Final = "dflash"
DFLASH2: Final = "dflash2"


@dataclass(frozen=True)
class Layout:
    """One kind of published checkpoint.

    causal, sliding: what an absent is_causal or use_sliding_window means; None: it must be given.
    refused: why no engine of this family can run it.
    """

    family: str
    causal: bool | None = None
    sliding: bool | None = None
    refused: str = ""


_DSPARK: Final = Layout(
    DFLASH,
    refused="a DSpark drafter (Markov head); convert it with llama.cpp's convert_hf_to_gguf.py",
)

# architectures in config.json -> layout. A new layout is a new row.
LAYOUTS: Final[Mapping[str, Layout]] = {
    "DFlash2DraftModel": Layout(DFLASH2),
    "DFlashDraftModel": Layout(DFLASH),
    "Qwen3DFlash2DraftModel": Layout(DFLASH2, causal=False),  # NeMo Automodel
    "Qwen3DFlashDraftModel": Layout(DFLASH, causal=False),
    "MuseGlimmerAssistantModel": Layout(DFLASH, sliding=True),
    "DFlashLagunaForCausalLM": Layout(
        DFLASH,
        refused="a Laguna drafter (attention gates, norms per tap); no engine here runs it",
    ),
    "Qwen3DSparkModel": _DSPARK,
    "DSparkDraftModel": _DSPARK,
    "DSparkSpeculator": _DSPARK,
    "Lfm2DSparkDraftModel": _DSPARK,
    "LingDSparkModel": _DSPARK,
    "Gemma4DSparkModel": _DSPARK,
}

# keys that only drafters with other backbones have -> what those are
_REFUSED_KEYS: Final[Mapping[str, str]] = {
    "kv_lora_rank": "a drafter with MLA attention; no engine here runs it",
    "q_lora_rank": "a drafter with MLA attention; no engine here runs it",
    "hc_mult": "a drafter with hyper-connections; no engine here runs it",
    "markov_rank": _DSPARK.refused,
    "projector_type": "a drafter with a correction head; no engine here runs it",
}


@dataclass(frozen=True)
class Selector:
    """Sizes of DFlash 2's convolutions and candidate selector."""

    kernel_size: int
    group_size: int
    rank: int
    top_k: int
    n_rows: int  # of the codebooks; tokens above have none


@dataclass(frozen=True)
class RopeScaling:
    """Context extension of the rotary embedding."""

    kind: str  # "linear" or "yarn"
    factor: float
    n_ctx_original: int | None
    ext_factor: float | None
    attn_factor: float | None
    beta_fast: float | None
    beta_slow: float | None


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
    n_vocab_draft: int  # rows of an own head; below n_vocab with d2t
    n_ctx_train: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    rope_interleaved: bool
    n_rot: int  # rotated values of a head
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]  # 0-based layers whose *output* is tapped
    causal: bool | None  # None: the engine's default
    sliding_window: int | None
    sliding_layers: tuple[bool, ...]  # per layer; empty without a window
    selector: Selector | None
    attention_sinks: bool
    value_scale: float | None
    logit_scale: float | None
    logit_softcap: float | None
    embedding_scale: float | None
    tied_embeddings: bool
    warnings: tuple[str, ...]

    @property
    def n_taps(self) -> int:
        return len(self.target_layer_ids)


def find_layout(raw: Mapping[str, Any], where: str) -> tuple[str, Layout]:
    """(architecture, layout) of a config.json. Raises ConvertError for unknown and refused ones."""
    top = Values(where, (raw,))
    names = raw.get("architectures")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise top.error("architectures", "a list of names", names)
    name = next((n for n in names if n in LAYOUTS), None)
    if name is None:
        known = ", ".join(n for n, layout in LAYOUTS.items() if not layout.refused)
        raise top.error("architectures", f"one of {known}", names)
    layout = LAYOUTS[name]
    if raw.get("speculators_model_type") == "dspark":
        layout = _DSPARK
    if layout.refused:
        raise ConvertError(f"{where}: {name}: {layout.refused}")
    return name, layout


def _rope(cfg: Values, where: str) -> tuple[float, RopeScaling | None, Values]:
    """(theta, scaling, look-up that also sees the rope object)."""
    rope = cfg.mapping("rope_parameters", "rope_scaling")
    per_kind = [rope[k] for k in ("full_attention", "sliding_attention") if k in rope]
    if any(kind != per_kind[0] for kind in per_kind):
        raise cfg.error("rope_parameters", "one rope for all layers", rope)
    if per_kind:
        rope = Values(where, (rope,)).mapping("full_attention", "sliding_attention")
    values = Values(where, (rope, *cfg.scopes))
    theta = values.positive("rope_theta")
    kind = Values(where, (rope,)).find("rope_type", "type") or "default"
    if kind == "default":
        return theta, None, values
    if kind not in ("linear", "yarn"):
        raise cfg.error("rope_type", "'default', 'linear' or 'yarn'", kind)
    scaling = RopeScaling(
        kind=kind,
        factor=values.positive("factor"),
        n_ctx_original=values.integer("original_max_position_embeddings")
        if kind == "yarn"
        else None,
        ext_factor=values.maybe_number("extrapolation_factor"),
        attn_factor=values.maybe_number("attention_factor", "attn_factor"),
        beta_fast=values.maybe_number("beta_fast"),
        beta_slow=values.maybe_number("beta_slow"),
    )
    return theta, scaling, values


def _sliding(cfg: Values, n_layer: int, layout: Layout) -> tuple[int | None, tuple[bool, ...]]:
    """(window, which layers slide)."""
    if cfg.flag("use_swa"):
        return cfg.integer("swa_window_size", "sliding_window"), (True,) * n_layer
    layer_types = cfg.find("layer_types")
    if layer_types is None:
        if cfg.flag("use_sliding_window"):
            raise cfg.error("layer_types", f"a list of {n_layer} layer types", None)
        return None, ()
    if not isinstance(layer_types, list) or len(layer_types) != n_layer:
        raise cfg.error("layer_types", f"a list of {n_layer} layer types", layer_types)
    for kind in layer_types:
        if kind not in ("sliding_attention", "full_attention"):
            raise cfg.error("layer_types", "'sliding_attention' or 'full_attention'", kind)
    slides = tuple(kind == "sliding_attention" for kind in layer_types)
    use = cfg.flag("use_sliding_window")
    use = layout.sliding if use is None else use
    if use is None and any(slides):
        raise cfg.error("use_sliding_window", "true or false beside sliding layer_types", None)
    if not use or not any(slides):  # llama.cpp aborts on a window that no layer uses
        return None, ()
    return cfg.integer("sliding_window"), slides


def _causal(
    cfg: Values, layout: Layout, sliding_layers: tuple[bool, ...]
) -> tuple[bool | None, tuple[str, ...]]:
    """(attention inside a block, warnings)."""
    causal = cfg.flag("is_causal", "causal")
    if causal is not None:
        return causal, ()
    if cfg.flag("sliding_window_non_causal") is False and any(sliding_layers):
        # speculators: sliding layers are causal, full ones are not
        if not all(sliding_layers):
            raise cfg.error("sliding_window_non_causal", "true beside full-attention layers", False)
        return True, ()
    if layout.causal is not None or cfg.flag("sliding_window_non_causal") is not None:
        return bool(layout.causal), ()
    if layout.family == DFLASH2 and any(sliding_layers):
        raise cfg.error("is_causal", "true or false", None, "; it changes what a block sees")
    if any(sliding_layers):
        return None, ("is_causal is not given: blocks attend both ways, as llama.cpp has it",)
    return (False if layout.family == DFLASH2 else None), ()


def _selector(cfg: Values, n_embd: int, n_vocab: int) -> Selector:
    n_rows = cfg.maybe_integer("selector_vocab_size", high=n_vocab)
    sel = Selector(
        kernel_size=cfg.integer("conv_kernel_size", high=64),
        group_size=cfg.integer("conv_group_size"),
        rank=cfg.integer("selector_rank"),
        top_k=cfg.integer("selector_top_k", high=1024),
        n_rows=n_rows or n_vocab,
    )
    if n_embd % sel.group_size != 0:
        raise cfg.error("conv_group_size", f"a divisor of hidden_size {n_embd}", sel.group_size)
    if n_embd < sel.top_k * (sel.top_k + 1):
        # llama.cpp packs the lattice of one position into a row of n_embd values
        raise cfg.error("selector_top_k", f"top_k * (top_k + 1) <= {n_embd}", sel.top_k)
    return sel


def _target_layer_ids(cfg: Values) -> tuple[int, ...]:
    n_target_layers = cfg.maybe_integer("num_target_layers") or 2**20
    key = "target_layer_ids"
    if cfg.find(key) is None and cfg.find("aux_hidden_state_layer_ids") is not None:
        # speculators names the layer whose input is tapped
        key = "aux_hidden_state_layer_ids"
        taps = tuple(i - 1 for i in cfg.integers(key))
    else:
        taps = cfg.integers(key)
    for tap in taps:
        if not 0 <= tap < n_target_layers:
            raise cfg.error(key, f"layers of a {n_target_layers}-layer target", tap)
    return taps


def _check_backbone(cfg: Values, n_head: int, n_head_kv: int, head_dim: int, n_embd: int) -> None:
    """Refuses what the dflash graph cannot express."""
    for key, why in _REFUSED_KEYS.items():
        if cfg.find(key):
            raise cfg.error(key, "nothing", cfg.find(key), f": {why}")
    if n_head % n_head_kv != 0:
        raise cfg.error("num_key_value_heads", f"a divisor of {n_head} heads", n_head_kv)
    if head_dim % 2 != 0:
        raise cfg.error("head_dim", "an even number", head_dim)
    for key, expected in (("v_head_dim", head_dim), ("target_hidden_size", n_embd)):
        if cfg.find(key) not in (None, expected):
            raise cfg.error(key, str(expected), cfg.find(key))
    for key in ("attention_bias", "mlp_bias", "sample_from_anchor", "fc_layernorm"):
        if cfg.flag(key):
            raise cfg.error(key, "false", True, "; the dflash graph has no such thing")
    if (act := cfg.find("hidden_act", "hidden_activation")) not in (None, "silu"):
        raise cfg.error("hidden_act", "'silu'", act)


def parse_config(raw: Mapping[str, Any], where: str = "config.json") -> DrafterConfig:
    """Normalises a drafter's config.json.

    raw: the JSON object. where: how errors name it.
    Raises ConvertError that names the key when a load-bearing value is missing or impossible.
    """
    architecture, layout = find_layout(raw, where)
    top = Values(where, (raw,))
    cfg = Values(
        where,
        (
            top.mapping("dflash_config"),
            top.mapping("dflash2_config"),
            top.mapping("transformer_layer_config"),
            raw,
        ),
    )
    n_embd = cfg.integer("hidden_size")
    n_layer = cfg.integer("num_hidden_layers", high=512)
    n_vocab = cfg.integer("vocab_size")
    n_head = cfg.integer("num_attention_heads")
    n_head_kv = cfg.integer("num_key_value_heads")
    head_dim = cfg.integer("head_dim")
    _check_backbone(cfg, n_head, n_head_kv, head_dim, n_embd)
    theta, scaling, rope = _rope(cfg, where)
    n_rot = int(head_dim * (rope.maybe_positive("partial_rotary_factor") or 1.0))
    if not 0 < n_rot <= head_dim or n_rot % 2 != 0:
        raise cfg.error("partial_rotary_factor", f"an even part of {head_dim} values", n_rot)
    window, sliding_layers = _sliding(cfg, n_layer, layout)
    causal, warnings = _causal(cfg, layout, sliding_layers)
    softcap = cfg.maybe_number("final_logit_softcapping")
    return DrafterConfig(
        architecture=architecture,
        family=layout.family,
        n_layer=n_layer,
        n_embd=n_embd,
        n_ff=cfg.integer("intermediate_size"),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        n_vocab=n_vocab,
        n_vocab_draft=cfg.maybe_integer("draft_vocab_size", high=n_vocab) or n_vocab,
        n_ctx_train=cfg.integer("max_position_embeddings"),
        rms_eps=cfg.positive("rms_norm_eps"),
        rope_theta=theta,
        rope_scaling=scaling,
        rope_interleaved=cfg.flag("rope_is_neox_style") is False,
        n_rot=n_rot,
        block_size=cfg.integer("block_size", low=2, high=1024),
        mask_token_id=cfg.integer("mask_token_id", low=0, high=n_vocab - 1),
        target_layer_ids=_target_layer_ids(cfg),
        causal=causal,
        sliding_window=window,
        sliding_layers=sliding_layers,
        selector=_selector(cfg, n_embd, n_vocab) if layout.family == DFLASH2 else None,
        attention_sinks=bool(cfg.flag("attention_sink_bias")),
        value_scale=cfg.maybe_positive("attention_value_scale"),
        logit_scale=cfg.maybe_positive("output_multiplier"),
        logit_softcap=softcap if softcap and softcap > 0 else None,
        embedding_scale=cfg.maybe_positive("input_embedding_scale"),
        tied_embeddings=bool(cfg.flag("tie_word_embeddings")),
        warnings=warnings,
    )

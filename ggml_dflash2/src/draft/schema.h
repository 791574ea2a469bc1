// Names of GGUF keys and tensors of architecture `dflash` (llama.cpp, 2026-10). convert/gguf_schema.py mirrors them.
#pragma once

namespace dflash2::schema {

constexpr const char * ARCH = "dflash";

constexpr const char * KEY_ARCHITECTURE   = "general.architecture";
constexpr const char * KEY_MASK_TOKEN     = "tokenizer.ggml.mask_token_id";
constexpr const char * KEY_CONTEXT_LENGTH = "dflash.context_length";
constexpr const char * KEY_N_LAYER        = "dflash.block_count";
constexpr const char * KEY_N_EMBD         = "dflash.embedding_length";
constexpr const char * KEY_N_FF           = "dflash.feed_forward_length";
constexpr const char * KEY_N_HEAD         = "dflash.attention.head_count";
constexpr const char * KEY_N_HEAD_KV      = "dflash.attention.head_count_kv";
constexpr const char * KEY_KEY_LENGTH     = "dflash.attention.key_length";
constexpr const char * KEY_VALUE_LENGTH   = "dflash.attention.value_length";
constexpr const char * KEY_RMS_EPS        = "dflash.attention.layer_norm_rms_epsilon";
constexpr const char * KEY_CAUSAL         = "dflash.attention.causal";
constexpr const char * KEY_WINDOW         = "dflash.attention.sliding_window";
constexpr const char * KEY_WINDOW_PATTERN = "dflash.attention.sliding_window_pattern";
constexpr const char * KEY_ROPE_BASE      = "dflash.rope.freq_base";
constexpr const char * KEY_ROPE_DIM       = "dflash.rope.dimension_count";
constexpr const char * KEY_BLOCK_SIZE     = "dflash.block_size";
constexpr const char * KEY_CONV_KERNEL    = "dflash.conv_kernel_size";
constexpr const char * KEY_CONV_GROUP     = "dflash.conv_group_size";
constexpr const char * KEY_SELECTOR_RANK  = "dflash.selector_rank";
constexpr const char * KEY_SELECTOR_TOP_K = "dflash.selector_top_k";
constexpr const char * KEY_TARGET_LAYERS  = "dflash.target_layers";
constexpr const char * KEY_LOGIT_SCALE    = "dflash.logit_scale";
constexpr const char * KEY_LOGIT_SOFTCAP  = "dflash.final_logit_softcapping";
constexpr const char * KEY_EMBD_SCALE     = "dflash.embedding_scale";

// Written by our converter only.
constexpr const char * KEY_TARGET_NAME       = "dflash2.target.name";
constexpr const char * KEY_TARGET_N_LAYER    = "dflash2.target.block_count";
constexpr const char * KEY_TARGET_VOCAB_HASH = "dflash2.target.vocab_hash";

// Keys that change the result and that the draft graph does not implement; no DFlash 2 checkpoint uses them.
constexpr const char * UNSUPPORTED_KEYS[] = {
    "dflash.attention.value_scale", "dflash.attention.scale",        "dflash.hidden_activation",
    "dflash.rope.scaling.type",     "dflash.hyper_connection.count",
};

constexpr const char * FC          = "fc.weight";
constexpr const char * HIDDEN_NORM = "enc.output_norm.weight";
constexpr const char * OUTPUT_NORM = "output_norm.weight";
constexpr const char * SEL_PRED    = "selector_predecessor.weight";
constexpr const char * SEL_SUCC    = "selector_successor.weight";
constexpr const char * SEL_HIDDEN  = "selector_hidden.weight";
constexpr const char * TOKEN_EMBD  = "token_embd.weight";
constexpr const char * OUTPUT      = "output.weight";
constexpr const char * D2T         = "d2t";
constexpr const char * MARKOV      = "markov_w1.weight";  // marks a DSpark file

// blk.N.<name>
constexpr const char * ATTN_NORM      = "attn_norm.weight";
constexpr const char * ATTN_Q         = "attn_q.weight";
constexpr const char * ATTN_K         = "attn_k.weight";
constexpr const char * ATTN_V         = "attn_v.weight";
constexpr const char * ATTN_OUT       = "attn_output.weight";
constexpr const char * ATTN_Q_NORM    = "attn_q_norm.weight";
constexpr const char * ATTN_K_NORM    = "attn_k_norm.weight";
constexpr const char * ATTN_CONV_BASE = "attn_conv_base";
constexpr const char * ATTN_CONV_PROJ = "attn_conv_proj.weight";
constexpr const char * FFN_NORM       = "ffn_norm.weight";
constexpr const char * FFN_GATE       = "ffn_gate.weight";
constexpr const char * FFN_UP         = "ffn_up.weight";
constexpr const char * FFN_DOWN       = "ffn_down.weight";
constexpr const char * FFN_CONV_BASE  = "ffn_conv_base";
constexpr const char * FFN_CONV_PROJ  = "ffn_conv_proj.weight";

}  // namespace dflash2::schema

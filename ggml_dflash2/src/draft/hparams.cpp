#include "draft/hparams.h"

#include <algorithm>
#include <optional>

#include "draft/schema.h"

namespace dflash2 {

namespace {

// Bounds far above any real model; they keep products of sizes inside int64.
constexpr int64_t MAX_DIM    = 1 << 20;
constexpr int64_t MAX_LAYERS = 512;

// llama.cpp reads an absent scale and a scale of 0 alike.
float scale_or_one(std::optional<float> scale) {
    return scale && *scale != 0.0f ? *scale : 1.0f;
}

void check_kind(const gguf_file & file) {
    const auto arch = file.find_string(schema::KEY_ARCHITECTURE);
    if (!arch || *arch != schema::ARCH) {
        file.fail(std::string("key ") + schema::KEY_ARCHITECTURE + ": expected \"dflash\", got " +
                  (arch ? "\"" + *arch + "\"" : "nothing") + "; this is not a DFlash drafter");
    }
    if (file.find_tensor(schema::MARKOV)) {
        file.fail("a DSpark drafter (it has markov_w1.weight); this engine runs DFlash 2, use llama-server for DSpark");
    }
    if (!file.find_tensor(schema::SEL_HIDDEN)) {
        file.fail("no selector_hidden.weight: a DFlash 1 drafter; this engine runs DFlash 2, use llama-server for it");
    }
    for (const char * key : schema::UNSUPPORTED_KEYS) {
        if (file.has(key)) {
            file.fail(std::string("key ") + key + " is not supported by the DFlash 2 draft graph");
        }
    }
}

void check(const gguf_file & file, const draft_hparams & hp) {
    if (hp.n_head % hp.n_head_kv != 0) {
        file.fail("attention.head_count " + std::to_string(hp.n_head) + " is not a multiple of head_count_kv " +
                  std::to_string(hp.n_head_kv));
    }
    if (hp.n_rot % 2 != 0 || hp.n_rot > hp.head_dim) {
        file.fail("rope.dimension_count: expected an even number up to " + std::to_string(hp.head_dim) + ", got " +
                  std::to_string(hp.n_rot));
    }
    if (hp.n_embd % hp.conv_group_size != 0) {
        file.fail("embedding_length " + std::to_string(hp.n_embd) + " is not a multiple of conv_group_size " +
                  std::to_string(hp.conv_group_size));
    }
    if (hp.sliding_window == 1) {
        file.fail(std::string("key ") + schema::KEY_WINDOW + ": expected 0 (none) or at least 2, got 1");
    }
    if (hp.rms_eps <= 0.0f || hp.rope_freq_base <= 0.0f || hp.logit_softcap < 0.0f) {
        file.fail("layer_norm_rms_epsilon and rope.freq_base must be positive, final_logit_softcapping not negative");
    }
    if (hp.target_layers.empty() || hp.target_layers.size() > MAX_LAYERS) {
        file.fail(std::string("key ") + schema::KEY_TARGET_LAYERS + ": expected 1 to 512 layers, got " +
                  std::to_string(hp.target_layers.size()));
    }
    for (const int32_t layer : hp.target_layers) {
        if (layer < 0 || layer > MAX_DIM) {
            file.fail(std::string("key ") + schema::KEY_TARGET_LAYERS + ": layer " + std::to_string(layer) +
                      " is out of range");
        }
    }
}

}  // namespace

int32_t draft_hparams::context_window() const {
    const bool all = std::all_of(is_sliding.begin(), is_sliding.end(), [](uint8_t s) { return s != 0; });
    return all ? sliding_window - 1 : 0;
}

draft_hparams read_hparams(const gguf_file & file) {
    check_kind(file);

    draft_hparams hp;
    hp.n_layer     = (int32_t) file.get_int(schema::KEY_N_LAYER, 1, MAX_LAYERS);
    hp.n_embd      = (int32_t) file.get_int(schema::KEY_N_EMBD, 1, MAX_DIM);
    hp.n_ff        = (int32_t) file.get_int(schema::KEY_N_FF, 1, MAX_DIM);
    hp.n_head      = (int32_t) file.get_int(schema::KEY_N_HEAD, 1, 4096);
    hp.n_head_kv   = (int32_t) file.get_int(schema::KEY_N_HEAD_KV, 1, 4096);
    hp.head_dim    = (int32_t) file.get_int(schema::KEY_KEY_LENGTH, 2, 4096);
    hp.n_rot       = (int32_t) file.find_int(schema::KEY_ROPE_DIM, 2, 4096).value_or(hp.head_dim);
    hp.n_ctx_train = (int32_t) file.find_int(schema::KEY_CONTEXT_LENGTH, 1, INT32_MAX).value_or(0);
    if (file.get_int(schema::KEY_VALUE_LENGTH, 2, 4096) != hp.head_dim) {
        file.fail("attention.value_length must equal attention.key_length");
    }

    hp.rms_eps         = file.get_float(schema::KEY_RMS_EPS);
    hp.rope_freq_base  = file.get_float(schema::KEY_ROPE_BASE);
    hp.logit_scale     = scale_or_one(file.find_float(schema::KEY_LOGIT_SCALE));
    hp.logit_softcap   = file.find_float(schema::KEY_LOGIT_SOFTCAP).value_or(0.0f);
    hp.embedding_scale = scale_or_one(file.find_float(schema::KEY_EMBD_SCALE));

    hp.causal         = file.find_bool(schema::KEY_CAUSAL).value_or(false);
    hp.sliding_window = (int32_t) file.find_int(schema::KEY_WINDOW, 0, INT32_MAX).value_or(0);
    hp.is_sliding.assign(hp.n_layer, 0);
    if (hp.sliding_window > 0) {
        const auto pattern = file.find_bool_array(schema::KEY_WINDOW_PATTERN);
        if (!pattern || (int32_t) pattern->size() != hp.n_layer) {
            file.fail(std::string("key ") + schema::KEY_WINDOW_PATTERN + ": expected " + std::to_string(hp.n_layer) +
                      " booleans, one per layer, got " + (pattern ? std::to_string(pattern->size()) : "nothing"));
        }
        hp.is_sliding = *pattern;
    }

    hp.block_size       = (int32_t) file.get_int(schema::KEY_BLOCK_SIZE, 2, 256);
    hp.conv_kernel_size = (int32_t) file.get_int(schema::KEY_CONV_KERNEL, 1, 64);
    hp.conv_group_size  = (int32_t) file.get_int(schema::KEY_CONV_GROUP, 1, MAX_DIM);
    hp.selector_rank    = (int32_t) file.get_int(schema::KEY_SELECTOR_RANK, 1, MAX_DIM);
    hp.selector_top_k   = (int32_t) file.get_int(schema::KEY_SELECTOR_TOP_K, 1, 256);
    hp.mask_token_id    = (int32_t) file.get_int(schema::KEY_MASK_TOKEN, 0, INT32_MAX);
    hp.target_layers    = file.get_int_array(schema::KEY_TARGET_LAYERS);

    check(file, hp);
    return hp;
}

draft_pairing read_pairing(const gguf_file & file) {
    draft_pairing p;
    p.target_name    = file.find_string(schema::KEY_TARGET_NAME).value_or("");
    p.target_n_layer = (int32_t) file.find_int(schema::KEY_TARGET_N_LAYER, 0, INT32_MAX).value_or(0);
    p.vocab_hash     = file.find_u64(schema::KEY_TARGET_VOCAB_HASH).value_or(0);
    return p;
}

}  // namespace dflash2

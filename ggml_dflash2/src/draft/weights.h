// Tensors of a drafter on one backend device; the token embedding stays in host memory.
#pragma once

#include <vector>

#include "draft/gguf-file.h"
#include "draft/tensor-buffer.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml_dflash2/draft-model.h"

namespace dflash2 {

struct conv_weights {
    ggml_tensor * base = nullptr;  // [n_embd, kernel (tap), 2 (side: before, after the sublayer)], F32
    ggml_tensor * proj = nullptr;  // [n_embd, n_group * kernel * 2], rows ordered side, tap, group (fastest)
};

struct layer_weights {
    ggml_tensor * attn_norm = nullptr;  // [n_embd]
    ggml_tensor * wq        = nullptr;  // [n_embd, head_dim * n_head]
    ggml_tensor * wk        = nullptr;  // [n_embd, head_dim * n_head_kv]
    ggml_tensor * wv        = nullptr;  // [n_embd, head_dim * n_head_kv]
    ggml_tensor * wo        = nullptr;  // [head_dim * n_head, n_embd]
    ggml_tensor * q_norm    = nullptr;  // [head_dim]
    ggml_tensor * k_norm    = nullptr;  // [head_dim]
    conv_weights  attn_conv;
    ggml_tensor * ffn_norm = nullptr;  // [n_embd]
    ggml_tensor * gate     = nullptr;  // [n_embd, n_ff]
    ggml_tensor * up       = nullptr;  // [n_embd, n_ff]
    ggml_tensor * down     = nullptr;  // [n_ff, n_embd]
    conv_weights  ffn_conv;
};

// Tensors in one buffer.
struct weight_group {
    ggml_backend_buffer_type_t buft = nullptr;
    ggml_context_ptr           ctx;
    tensor_buffer              buffer;
};

struct draft_weights {
    ggml_tensor *              fc          = nullptr;  // [n_taps * n_embd, n_embd]
    ggml_tensor *              hidden_norm = nullptr;  // [n_embd]
    ggml_tensor *              output_norm = nullptr;  // [n_embd]
    ggml_tensor *              sel_pred    = nullptr;  // [rank, n_vocab]
    ggml_tensor *              sel_succ    = nullptr;  // [rank, n_vocab]
    ggml_tensor *              sel_hidden  = nullptr;  // [n_embd, rank]
    ggml_tensor *              tok_embd    = nullptr;  // [n_embd, n_vocab], optional
    ggml_tensor *              output      = nullptr;  // [n_embd, n_head_out], optional
    ggml_tensor *              d2t         = nullptr;  // [1, n_head_out] I32, target ids of the head's rows, optional
    std::vector<layer_weights> layers;

    std::vector<weight_group> groups;     // on the device, one for each type of buffer
    weight_group              embedding;  // read on the host

    size_t size_bytes() const;  // of the groups
};

// Binds every tensor by name, checks shape and type, rejects tensors it does not know, then loads the data unless it is
// to plan only. Sets hp.n_vocab. Throws errc::format, errc::memory.
draft_weights load_weights(const gguf_file & file, draft_hparams & hp, ggml_backend_dev_t device, bool plan_only);

}  // namespace dflash2

// Exported symbols of libllama that no installed header declares (llama.cpp's src/llama-ext.h, 2026-10-01).
// Nothing else in the project declares such symbols. They may change in any release: hence the exact version pin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "llama.h"

// What llama-quantize would choose. The model is a mock of the given shape; free it with llama_model_free.
struct llama_quant_model_desc {
    const char * architecture;
    uint32_t     n_embd;
    uint32_t     n_ff;
    uint32_t     n_layer;  // 1 to 512, or libllama aborts
    uint32_t     n_head;
    uint32_t     n_head_kv;
    uint32_t     n_expert;
    uint32_t     n_embd_head_k;
    uint32_t     n_embd_head_v;
};

struct quantize_state_impl;

LLAMA_API llama_model *         llama_quant_model_from_metadata(const llama_quant_model_desc * desc);
LLAMA_API quantize_state_impl * llama_quant_init(const llama_model * model, const llama_model_quantize_params * params);
LLAMA_API void                  llama_quant_free(quantize_state_impl * state);
LLAMA_API bool llama_quant_tensor_allows_quantization(const quantize_state_impl * state, const ggml_tensor * tensor);
LLAMA_API void llama_quant_compute_types(quantize_state_impl * state, llama_ftype ftype, ggml_tensor ** tensors,
                                         ggml_type * types, size_t n_tensors);

// Hidden states: when enabled, every decode copies the input of layer `layer` to the host; row i of the last decode is
// at llama_get_embeddings_layer_inp(..) + i * n_embd. libllama aborts on an architecture that does not expose them.
LLAMA_API void    llama_set_embeddings_layer_inp(llama_context * ctx, uint32_t layer, bool value);
LLAMA_API float * llama_get_embeddings_layer_inp(llama_context * ctx, uint32_t layer);

// Bytes of a context and its model by buffer type; of a model loaded with no_alloc, those that they would take.
struct llama_memory_breakdown_data {
    size_t model;
    size_t context;
    size_t compute;
};

LLAMA_API std::map<ggml_backend_buffer_type_t, llama_memory_breakdown_data> llama_get_memory_breakdown(
    const llama_context * ctx);

// Every tensor of a model. A name can be listed twice: tied embeddings have one copy per buffer type.
const std::vector<std::pair<std::string, ggml_tensor *>> & llama_internal_get_tensor_map(const llama_model * model);

#include "engine/quantize.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <system_error>
#include <thread>

#include "ggml.h"
#include "ggml_dflash2/error.h"
#include "llama-ext-shim.h"

namespace dflash2 {

namespace {

constexpr int64_t max_elements = int64_t(1) << 48;  // far above any tensor, far below an overflow in bytes
constexpr float   max_f16      = 65504.0f;          // block types keep their scales in F16
constexpr float   max_weight   = 1e20f;  // of an importance matrix: weighted squares of F16 values stay finite

struct named_ftype {
    const char * name;
    llama_ftype  ftype;
};

// The names of llama-quantize.
constexpr named_ftype ftypes[] = {{"F32", LLAMA_FTYPE_ALL_F32},
                                  {"F16", LLAMA_FTYPE_MOSTLY_F16},
                                  {"BF16", LLAMA_FTYPE_MOSTLY_BF16},
                                  {"Q8_0", LLAMA_FTYPE_MOSTLY_Q8_0},
                                  {"Q6_K", LLAMA_FTYPE_MOSTLY_Q6_K},
                                  {"Q5_K", LLAMA_FTYPE_MOSTLY_Q5_K_M},
                                  {"Q5_K_M", LLAMA_FTYPE_MOSTLY_Q5_K_M},
                                  {"Q5_K_S", LLAMA_FTYPE_MOSTLY_Q5_K_S},
                                  {"Q5_1", LLAMA_FTYPE_MOSTLY_Q5_1},
                                  {"Q5_0", LLAMA_FTYPE_MOSTLY_Q5_0},
                                  {"Q4_K", LLAMA_FTYPE_MOSTLY_Q4_K_M},
                                  {"Q4_K_M", LLAMA_FTYPE_MOSTLY_Q4_K_M},
                                  {"Q4_K_S", LLAMA_FTYPE_MOSTLY_Q4_K_S},
                                  {"Q4_1", LLAMA_FTYPE_MOSTLY_Q4_1},
                                  {"Q4_0", LLAMA_FTYPE_MOSTLY_Q4_0},
                                  {"IQ4_NL", LLAMA_FTYPE_MOSTLY_IQ4_NL},
                                  {"IQ4_XS", LLAMA_FTYPE_MOSTLY_IQ4_XS},
                                  {"Q3_K", LLAMA_FTYPE_MOSTLY_Q3_K_M},
                                  {"Q3_K_L", LLAMA_FTYPE_MOSTLY_Q3_K_L},
                                  {"Q3_K_M", LLAMA_FTYPE_MOSTLY_Q3_K_M},
                                  {"Q3_K_S", LLAMA_FTYPE_MOSTLY_Q3_K_S},
                                  {"IQ3_M", LLAMA_FTYPE_MOSTLY_IQ3_M},
                                  {"IQ3_S", LLAMA_FTYPE_MOSTLY_IQ3_S},
                                  {"IQ3_XS", LLAMA_FTYPE_MOSTLY_IQ3_XS},
                                  {"IQ3_XXS", LLAMA_FTYPE_MOSTLY_IQ3_XXS},
                                  {"Q2_K", LLAMA_FTYPE_MOSTLY_Q2_K},
                                  {"Q2_K_S", LLAMA_FTYPE_MOSTLY_Q2_K_S},
                                  {"IQ2_M", LLAMA_FTYPE_MOSTLY_IQ2_M},
                                  {"IQ2_S", LLAMA_FTYPE_MOSTLY_IQ2_S},
                                  {"IQ2_XS", LLAMA_FTYPE_MOSTLY_IQ2_XS},
                                  {"IQ2_XXS", LLAMA_FTYPE_MOSTLY_IQ2_XXS},
                                  {"IQ1_M", LLAMA_FTYPE_MOSTLY_IQ1_M},
                                  {"IQ1_S", LLAMA_FTYPE_MOSTLY_IQ1_S},
                                  {"TQ2_0", LLAMA_FTYPE_MOSTLY_TQ2_0},
                                  {"TQ1_0", LLAMA_FTYPE_MOSTLY_TQ1_0},
                                  {"MXFP4_MOE", LLAMA_FTYPE_MOSTLY_MXFP4_MOE}};

bool same_name(const std::string & a, const char * b) {
    const std::string other = b;
    return a.size() == other.size() &&
           std::equal(a.begin(), a.end(), other.begin(),
                      [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

ggml_type type_from_name(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const ggml_type type = ggml_type(i);
        const bool      keep = type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
        // the q8 activation types are quantized but ggml_quantize_chunk does not write them
        const bool write = ggml_is_quantized(type) && type != GGML_TYPE_Q8_1 && type != GGML_TYPE_Q8_K;
        if ((keep || write) && ggml_blck_size(type) > 0 && same_name(name, ggml_type_name(type))) {
            return type;
        }
    }
    throw error(errc::argument, "tensor type '" + name +
                                    "': expected a ggml type that can be written, such as f16, "
                                    "q8_0 or q4_K");
}

llama_ftype ftype_from_name(const std::string & name) {
    std::string known;
    for (const named_ftype & f : ftypes) {
        if (same_name(name, f.name)) {
            return f.ftype;
        }
        known += std::string(known.empty() ? "" : ", ") + f.name;
    }
    throw error(errc::argument, "file type '" + name + "': expected one of " + known);
}

size_t row_size(ggml_type type, int64_t n_cols) {
    if (n_cols < 1 || n_cols > max_elements) {
        throw error(errc::argument, "columns: expected 1 to 2^48, got " + std::to_string(n_cols));
    }
    if (n_cols % ggml_blck_size(type) != 0) {
        throw error(errc::argument, "columns: expected a multiple of " + std::to_string(ggml_blck_size(type)) +
                                        " for type " + ggml_type_name(type) + ", got " + std::to_string(n_cols));
    }
    return ggml_row_size(type, n_cols);
}

// The grid searches of the low-bit types abort on larger values and on NaN.
bool holds(ggml_type type, const float * row, int64_t n_cols) {
    const bool  wide  = type == GGML_TYPE_F32 || type == GGML_TYPE_BF16;
    const float limit = wide ? std::numeric_limits<float>::max() : max_f16;
    return std::all_of(row, row + n_cols, [limit](float x) { return std::fabs(x) <= limit; });
}

void validate_imatrix(const float * imatrix, int64_t n_cols) {
    for (int64_t i = 0; imatrix && i < n_cols; ++i) {
        if (!(imatrix[i] >= 0.0f && imatrix[i] <= max_weight)) {
            throw error(errc::argument, "imatrix: expected values from 0 to 1e20, got " + std::to_string(imatrix[i]) +
                                            " for column " + std::to_string(i));
        }
    }
}

void validate(const tensor_shape & t) {
    const std::string where = "tensor '" + t.name + "': ";
    if (t.name.empty() || t.name.size() >= GGML_MAX_NAME) {
        throw error(errc::argument, where + "expected a name of 1 to " + std::to_string(GGML_MAX_NAME - 1) +
                                        " bytes, got " + std::to_string(t.name.size()));
    }
    if (t.ne.empty() || t.ne.size() > GGML_MAX_DIMS) {
        throw error(errc::argument, where + "expected 1 to 4 dimensions, got " + std::to_string(t.ne.size()));
    }
    int64_t n = 1;
    for (const int64_t d : t.ne) {
        if (d < 1 || d > max_elements / n) {
            throw error(errc::argument,
                        where + "expected dimensions of 1 or more and at most 2^48 elements, got " + std::to_string(d));
        }
        n *= d;
    }
}

void validate(const quantize_hparams & h) {
    const auto check = [](const char * name, int32_t value, int32_t max) {
        if (value < 1 || value > max) {
            throw error(errc::argument, std::string(name) + ": expected 1 to " + std::to_string(max) + ", got " +
                                            std::to_string(value));
        }
    };
    const int32_t any = std::numeric_limits<int32_t>::max();
    check("n_embd", h.n_embd, any);
    check("n_ff", h.n_ff, any);
    check("n_layer", h.n_layer, 512);  // LLAMA_MAX_LAYERS
    check("n_head", h.n_head, any);
    check("n_head_kv", h.n_head_kv, any);
    check("head_dim", h.head_dim, any);
}

// llama.cpp visits tensors layer by layer, then by name; the running counts behind its choices follow that order.
bool visited_before(const std::string & a, const std::string & b) {
    int layer_a = -1;
    int layer_b = -1;
    std::sscanf(a.c_str(), "blk.%d.", &layer_a);
    std::sscanf(b.c_str(), "blk.%d.", &layer_b);
    return layer_a != layer_b ? layer_a < layer_b : a < b;
}

using quantize_state = std::unique_ptr<quantize_state_impl, void (*)(quantize_state_impl *)>;

// llama_quant_compute_types assumes that there is no importance matrix. With one, llama.cpp gives some tensors the
// file type's plain choice instead of more bits, or a safer type.
struct imatrix_rule {
    llama_ftype  ftype;
    const char * tensor;
    bool         early_only;  // the first eighth of the layers
    llama_ftype  instead;     // the file type whose ordinary tensors have the type
};

constexpr imatrix_rule imatrix_rules[] = {
    {LLAMA_FTYPE_MOSTLY_IQ4_NL, "ffn_down", true, LLAMA_FTYPE_MOSTLY_IQ4_NL},
    {LLAMA_FTYPE_MOSTLY_IQ4_XS, "ffn_down", true, LLAMA_FTYPE_MOSTLY_IQ4_XS},
    {LLAMA_FTYPE_MOSTLY_Q4_0, "ffn_down", true, LLAMA_FTYPE_MOSTLY_Q4_1},
    {LLAMA_FTYPE_MOSTLY_Q5_0, "ffn_down", true, LLAMA_FTYPE_MOSTLY_Q5_1},
    {LLAMA_FTYPE_MOSTLY_IQ3_XXS, "ffn_down", false, LLAMA_FTYPE_MOSTLY_IQ3_XXS},
};

ggml_type ordinary_type(const quantize_state & state, llama_ftype ftype, const ggml_tensor & like) {
    ggml_tensor   tensor  = like;
    ggml_tensor * tensors = &tensor;
    ggml_type     type    = GGML_TYPE_F32;
    ggml_set_name(&tensor, "fc.weight");
    llama_quant_compute_types(state.get(), ftype, &tensors, &type, 1);
    return type;
}

// tensors: in the order of visit.
void apply_imatrix_rules(const quantize_state & state, llama_ftype ftype, const quantize_hparams & hparams,
                         const std::vector<ggml_tensor *> & tensors, std::vector<ggml_type> & types) {
    for (const imatrix_rule & rule : imatrix_rules) {
        if (rule.ftype != ftype) {
            continue;
        }
        int32_t n_seen = 0;
        for (size_t k = 0; k < tensors.size(); ++k) {
            if (std::strstr(tensors[k]->name, rule.tensor) && (n_seen++ < hparams.n_layer / 8 || !rule.early_only)) {
                types[k] = ordinary_type(state, rule.instead, *tensors[k]);
            }
        }
    }
    const bool grouped = hparams.n_head / hparams.n_head_kv >= 4;
    for (size_t k = 0; ftype == LLAMA_FTYPE_MOSTLY_IQ3_XXS && !grouped && k < tensors.size(); ++k) {
        if (std::strstr(tensors[k]->name, "attn_v.weight")) {
            types[k] = ordinary_type(state, ftype, *tensors[k]);
        }
    }
}

}  // namespace

size_t quantized_row_size(const std::string & type, int64_t n_cols) {
    return row_size(type_from_name(type), n_cols);
}

void quantize(const float * data, int64_t n_rows, int64_t n_cols, const std::string & type_name, int32_t n_threads,
              uint8_t * out, const float * imatrix) {
    const ggml_type type      = type_from_name(type_name);
    const size_t    row_bytes = row_size(type, n_cols);
    if (n_rows < 0 || n_rows > max_elements / n_cols) {
        throw error(errc::argument, "rows: expected 0 to 2^48 elements in all, got " + std::to_string(n_rows) +
                                        " rows of " + std::to_string(n_cols));
    }
    validate_imatrix(imatrix, n_cols);
    if (!imatrix && ggml_quantize_requires_imatrix(type)) {
        throw error(errc::argument, std::string("type ") + ggml_type_name(type) +
                                        ": needs an importance matrix; choose iq2_s or a K type");
    }
    ggml_quantize_init(type);

    std::atomic<int64_t> next{0};
    std::atomic<int64_t> bad_row{-1};
    const int64_t        step = std::max<int64_t>(1, 65536 / n_cols);  // rows taken at once

    const auto work = [&] {
        for (int64_t first = next.fetch_add(step); first < n_rows && bad_row < 0; first = next.fetch_add(step)) {
            const int64_t last = std::min(first + step, n_rows);
            for (int64_t row = first; row < last; ++row) {
                if (!holds(type, data + row * n_cols, n_cols)) {
                    bad_row = row;
                    return;
                }
            }
            ggml_quantize_chunk(type, data + first * n_cols, out + first * row_bytes, 0, last - first, n_cols, imatrix);
        }
    };

    const int64_t cores = n_threads > 0 ? n_threads : std::thread::hardware_concurrency();
    const int64_t n     = std::clamp<int64_t>(cores, 1, std::min<int64_t>(256, n_rows / step + 1));

    std::vector<std::thread> threads;
    threads.reserve(n);
    try {
        while (int64_t(threads.size()) + 1 < n) {
            threads.emplace_back(work);
        }
    } catch (const std::system_error &) {
        // out of threads: those that started and this one do the work
    }
    work();
    for (std::thread & t : threads) {
        t.join();
    }
    if (bad_row >= 0) {
        throw error(errc::argument, "row " + std::to_string(bad_row) +
                                        ": a value is not finite or too large for type " + ggml_type_name(type) +
                                        "; check the source tensor");
    }
}

std::vector<std::string> quantize_types(const std::string & ftype_name, const std::vector<tensor_shape> & tensors,
                                        const quantize_hparams & hparams, bool has_imatrix) {
    const llama_ftype ftype = ftype_from_name(ftype_name);
    validate(hparams);

    std::vector<size_t> order(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
        validate(tensors[i]);
        order[i] = i;
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return visited_before(tensors[a].name, tensors[b].name); });

    const std::unique_ptr<ggml_context, void (*)(ggml_context *)> ctx(
        ggml_init({(tensors.size() + 1) * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}), ggml_free);
    const llama_quant_model_desc desc = {
        "dflash",
        uint32_t(hparams.n_embd),
        uint32_t(hparams.n_ff),
        uint32_t(hparams.n_layer),
        uint32_t(hparams.n_head),
        uint32_t(hparams.n_head_kv),
        /*n_expert=*/0,
        uint32_t(hparams.head_dim),
        uint32_t(hparams.head_dim),
    };
    const std::unique_ptr<llama_model, void (*)(llama_model *)> model(llama_quant_model_from_metadata(&desc),
                                                                      llama_model_free);
    llama_model_quantize_params                                 params = llama_model_quantize_default_params();
    params.ftype                                                       = ftype;
    const quantize_state state(llama_quant_init(model.get(), &params), llama_quant_free);
    if (!ctx || !model || !state) {
        throw error(errc::memory, "quantize_types: libllama could not set up the tensor list");
    }

    std::vector<size_t>        kept;
    std::vector<ggml_tensor *> chosen;
    for (const size_t i : order) {
        const tensor_shape & t      = tensors[i];
        ggml_tensor *        tensor = ggml_new_tensor(ctx.get(), GGML_TYPE_F32, int(t.ne.size()), t.ne.data());
        ggml_set_name(tensor, t.name.c_str());
        if (llama_quant_tensor_allows_quantization(state.get(), tensor)) {
            kept.push_back(i);
            chosen.push_back(tensor);
        }
    }

    std::vector<ggml_type> types(chosen.size());
    try {
        llama_quant_compute_types(state.get(), ftype, chosen.data(), types.data(), types.size());
        if (has_imatrix) {
            apply_imatrix_rules(state, ftype, hparams, chosen, types);
        }
    } catch (const std::exception & e) {
        throw error(errc::argument, "file type " + ftype_name + ": " + e.what());
    }
    std::vector<std::string> result(tensors.size());
    for (size_t k = 0; k < kept.size(); ++k) {
        result[kept[k]] = ggml_type_name(types[k]);
    }
    return result;
}

}  // namespace dflash2

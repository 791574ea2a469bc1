#include "ggml_dflash2/target.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>

#include "draft/gguf-file.h"
#include "engine/llama-ext-shim.h"
#include "engine/taps.h"
#include "ggml-backend.h"
#include "ggml_dflash2/error.h"
#include "llama-cpp.h"

namespace dflash2 {

namespace {

// Rows with logits per decode: bounds the compute buffer, which else holds n_batch rows of the vocabulary.
constexpr int32_t MAX_LOGIT_ROWS = 64;

struct batch_owner {
    llama_batch batch;

    explicit batch_owner(int32_t n) : batch(llama_batch_init(n, 0, 1)) {}

    ~batch_owner() { llama_batch_free(batch); }

    batch_owner(const batch_owner &)             = delete;
    batch_owner & operator=(const batch_owner &) = delete;
};

int32_t default_threads() {
    return std::max(1, (int32_t) std::thread::hardware_concurrency() / 2);
}

void fnv1a(uint64_t & hash, const void * data, size_t size) {
    for (size_t i = 0; i < size; ++i) {
        hash = (hash ^ ((const uint8_t *) data)[i]) * 0x100000001b3ULL;
    }
}

}  // namespace

struct target::impl {
    std::string                  path;
    llama_model_ptr              model;
    llama_context_ptr            ctx;
    const llama_vocab *          vocab = nullptr;
    std::unique_ptr<batch_owner> batch;
    int32_t                      n_threads = 1;
    int32_t                      n_past    = 0;  // positions in the KV cache
    std::vector<int32_t>         taps;

    std::string arch() const {
        char buf[128] = "";
        llama_model_meta_val_str(model.get(), "general.architecture", buf, sizeof(buf));
        return buf;
    }
};

target::target(const std::string & path, const target_params & params) : impl_(std::make_unique<impl>()) {
    static std::once_flag once;
    std::call_once(once, llama_backend_init);

    if (params.n_ctx < 0 || params.n_batch < 1 || params.n_threads < 0) {
        throw error(errc::argument, "target: n_ctx and n_threads must not be negative, n_batch must be at least 1");
    }
    impl & t    = *impl_;
    t.path      = path;
    t.n_threads = params.n_threads > 0 ? params.n_threads : default_threads();
    {  // a named error for missing, truncated and malformed files
        const gguf_file header(path);
    }

    llama_model_params mparams = llama_model_default_params();
    mparams.n_gpu_layers       = params.n_gpu_layers < 0 ? INT32_MAX : params.n_gpu_layers;
    t.model.reset(llama_model_load_from_file(path.c_str(), mparams));
    if (!t.model) {
        throw error(errc::format, path + ": libllama cannot load this target; the log says why");
    }
    t.vocab = llama_model_get_vocab(t.model.get());

    llama_context_params cparams = llama_context_default_params();
    cparams.n_ctx                = params.n_ctx;
    cparams.n_batch              = params.n_batch;
    cparams.n_ubatch             = params.n_batch;
    cparams.n_seq_max            = 1;
    cparams.n_outputs_max        = std::min(params.n_batch, MAX_LOGIT_ROWS);
    cparams.n_threads            = t.n_threads;
    cparams.n_threads_batch      = t.n_threads;
    cparams.no_perf              = true;
    t.ctx.reset(llama_init_from_model(t.model.get(), cparams));
    if (!t.ctx) {
        throw error(errc::memory, path + ": libllama cannot create a context of " + std::to_string(params.n_ctx) +
                                      " tokens; use a smaller n_ctx");
    }
    t.batch = std::make_unique<batch_owner>(n_batch());
}

target::~target() = default;

const std::string & target::path() const {
    return impl_->path;
}

int32_t target::n_ctx() const {
    return (int32_t) llama_n_ctx(impl_->ctx.get());
}

int32_t target::n_batch() const {
    return (int32_t) llama_n_batch(impl_->ctx.get());
}

int32_t target::max_logit_rows() const {
    return std::min(n_batch(), MAX_LOGIT_ROWS);
}

int32_t target::n_vocab() const {
    return llama_vocab_n_tokens(impl_->vocab);
}

int32_t target::n_embd() const {
    return llama_model_n_embd(impl_->model.get());
}

int32_t target::n_layer() const {
    return llama_model_n_layer(impl_->model.get());
}

int32_t target::n_threads() const {
    return impl_->n_threads;
}

bool target::can_rollback() const {
    const llama_model * m = impl_->model.get();
    return !llama_model_is_recurrent(m) && !llama_model_is_hybrid(m) && !llama_model_has_encoder(m);
}

std::string target::description() const {
    char buf[256] = "";
    llama_model_desc(impl_->model.get(), buf, sizeof(buf));
    return buf;
}

std::map<std::string, std::string> target::metadata() const {
    std::map<std::string, std::string> out;
    const llama_model *                m = impl_->model.get();
    std::vector<char>                  key(1), value(1);

    const auto read = [](std::vector<char> & buf, auto get) {
        int32_t n = get(buf.data(), buf.size());
        if (n >= (int32_t) buf.size()) {
            buf.resize(n + 1);
            n = get(buf.data(), buf.size());
        }
        return n < 0 ? std::string() : std::string(buf.data(), n);
    };
    for (int32_t i = 0; i < llama_model_meta_count(m); ++i) {
        const std::string k = read(key, [&](char * b, size_t n) { return llama_model_meta_key_by_index(m, i, b, n); });
        out[k] = read(value, [&](char * b, size_t n) { return llama_model_meta_val_str_by_index(m, i, b, n); });
    }
    return out;
}

void target::set_taps(const std::vector<int32_t> & layers) {
    impl & t = *impl_;
    if (layers == t.taps) {
        return;  // toggling makes libllama reserve its graph again
    }
    const std::string arch = t.arch();
    for (const int32_t layer : layers) {
        const std::string refusal = tap_refusal(arch, n_layer(), layer);
        if (!refusal.empty()) {
            throw error(errc::incompatible, t.path + ": " + refusal);
        }
    }
    for (const int32_t layer : t.taps) {
        llama_set_embeddings_layer_inp(t.ctx.get(), (uint32_t) layer, false);
    }
    for (const int32_t layer : layers) {
        llama_set_embeddings_layer_inp(t.ctx.get(), (uint32_t) layer, true);
    }
    t.taps = layers;
}

void target::decode(const token_id * tokens, int32_t n_tokens, int32_t position, bool all_logits) {
    impl & t = *impl_;
    if (n_tokens < 1 || n_tokens > n_batch() || (all_logits && n_tokens > max_logit_rows())) {
        throw error(errc::argument, "decode: expected 1 to " +
                                        std::to_string(all_logits ? max_logit_rows() : n_batch()) + " tokens, got " +
                                        std::to_string(n_tokens));
    }
    if (position != t.n_past) {
        throw error(errc::argument, "decode: the sequence ends at position " + std::to_string(t.n_past) + ", got " +
                                        std::to_string(position));
    }
    if (n_tokens > n_ctx() - position) {
        throw error(errc::context_full,
                    "the context of " + std::to_string(n_ctx()) + " tokens is full: " + std::to_string(position) +
                        " used, " + std::to_string(n_tokens) + " more needed; use a larger n_ctx or a shorter prompt");
    }
    llama_batch & b = t.batch->batch;
    b.n_tokens      = n_tokens;
    for (int32_t i = 0; i < n_tokens; ++i) {
        if (tokens[i] < 0 || tokens[i] >= n_vocab()) {
            throw error(errc::argument, "decode: token " + std::to_string(tokens[i]) +
                                            " is outside the vocabulary of " + std::to_string(n_vocab()));
        }
        b.token[i]     = tokens[i];
        b.pos[i]       = position + i;
        b.n_seq_id[i]  = 1;
        b.seq_id[i][0] = 0;
        b.logits[i]    = all_logits || i == n_tokens - 1;
    }
    const int32_t rc = llama_decode(t.ctx.get(), b);
    if (rc != 0) {
        llama_memory_seq_rm(llama_get_memory(t.ctx.get()), 0, position, -1);
        throw error(errc::decode, "llama_decode of " + std::to_string(n_tokens) + " tokens at position " +
                                      std::to_string(position) + " failed with code " + std::to_string(rc));
    }
    t.n_past = position + n_tokens;
}

const float * target::logits(int32_t row) const {
    const llama_batch & b = impl_->batch->batch;
    if (row < 0 || row >= b.n_tokens || !b.logits[row]) {
        throw error(errc::argument, "logits: row " + std::to_string(row) + " of the last decode has none");
    }
    return llama_get_logits_ith(impl_->ctx.get(), row);
}

features target::tapped() const {
    features f;
    f.n_embd   = n_embd();
    f.n_rows   = impl_->batch->batch.n_tokens;
    f.position = f.n_rows > 0 ? impl_->batch->batch.pos[0] : 0;
    for (const int32_t layer : impl_->taps) {
        f.tap.push_back(f.n_rows > 0 ? llama_get_embeddings_layer_inp(impl_->ctx.get(), (uint32_t) layer) : nullptr);
    }
    return f;
}

void target::truncate(int32_t n_keep) {
    impl & t = *impl_;
    if (n_keep >= t.n_past) {
        return;
    }
    if (n_keep == 0) {
        llama_memory_clear(llama_get_memory(t.ctx.get()), false);
    } else if (!can_rollback() || !llama_memory_seq_rm(llama_get_memory(t.ctx.get()), 0, n_keep, -1)) {
        throw error(errc::incompatible, t.path + ": the memory of architecture " + t.arch() +
                                            " cannot be rolled back to position " + std::to_string(n_keep));
    }
    t.n_past = n_keep;
}

std::vector<token_id> target::tokenize(const std::string & text, bool add_special, bool parse_special) const {
    std::vector<token_id> out(text.size() + 8);
    int32_t n = llama_tokenize(impl_->vocab, text.data(), (int32_t) text.size(), out.data(), (int32_t) out.size(),
                               add_special, parse_special);
    if (n < 0 && n != INT32_MIN) {
        out.resize(-n);
        n = llama_tokenize(impl_->vocab, text.data(), (int32_t) text.size(), out.data(), (int32_t) out.size(),
                           add_special, parse_special);
    }
    if (n < 0) {
        throw error(errc::argument, "tokenize: the text is too long");
    }
    out.resize(n);
    return out;
}

std::string target::piece(token_id id, bool special) const {
    if (id < 0 || id >= n_vocab()) {
        throw error(errc::argument, "piece: token " + std::to_string(id) + " is outside the vocabulary of " +
                                        std::to_string(n_vocab()));
    }
    std::string out(16, '\0');
    int32_t     n = llama_token_to_piece(impl_->vocab, id, out.data(), (int32_t) out.size(), 0, special);
    if (n < 0) {
        out.resize(-n);
        n = llama_token_to_piece(impl_->vocab, id, out.data(), (int32_t) out.size(), 0, special);
    }
    out.resize(std::max(n, 0));
    return out;
}

bool target::is_eog(token_id id) const {
    return llama_vocab_is_eog(impl_->vocab, id);
}

token_id target::bos() const {
    return llama_vocab_bos(impl_->vocab);
}

token_id target::eos() const {
    return llama_vocab_eos(impl_->vocab);
}

uint64_t target::vocab_hash() const {
    const gguf_file file(impl_->path);
    const auto      texts = file.find_string_array("tokenizer.ggml.tokens");
    const auto      types = file.has("tokenizer.ggml.token_type") ? file.get_int_array("tokenizer.ggml.token_type")
                                                                  : std::vector<int32_t>();
    uint64_t        hash  = 0xcbf29ce484222325ULL;
    for (size_t i = 0; texts && i < texts->size(); ++i) {
        const uint8_t type = i < types.size() ? (uint8_t) types[i] : 1;
        fnv1a(hash, (*texts)[i].c_str(), (*texts)[i].size() + 1);
        fnv1a(hash, &type, 1);
    }
    return hash;
}

shared_tensors target::shared() const {
    shared_tensors s;
    // The embedding is read row by row, so it must not be the copy in a repacked or device buffer.
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(impl_->model.get())) {
        if (name == "output.weight") {
            s.output = tensor;
        }
        const bool host = tensor->buffer && ggml_backend_buffer_is_host(tensor->buffer);
        if (name == "token_embd.weight" && (!s.tok_embd || host)) {
            s.tok_embd = tensor;
        }
    }
    if (!s.output) {  // tied: the other copy if there is one
        s.output = s.tok_embd;
        for (const auto & [name, tensor] : llama_internal_get_tensor_map(impl_->model.get())) {
            if (name == "token_embd.weight" && tensor != s.tok_embd) {
                s.output = tensor;
            }
        }
    }
    return s;
}

const llama_vocab * target::vocab() const {
    return impl_->vocab;
}

}  // namespace dflash2

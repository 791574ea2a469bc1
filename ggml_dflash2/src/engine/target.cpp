#include "ggml_dflash2/target.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>

#include "draft/gguf-file.h"
#include "engine/llama-ext-shim.h"
#include "engine/row-cut.h"
#include "engine/taps.h"
#include "ggml-backend.h"
#include "ggml_dflash2/error.h"
#include "llama-cpp.h"

namespace dflash2 {

namespace {

// Rows with logits per sequence and decode: bounds the compute buffer, which else holds n_batch rows of the vocabulary.
constexpr int32_t MAX_DRAFT_ROWS = 32;

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

// The CPU's plain buffers name no device, and memory of the host that is pinned for another one names that.
std::string device_name(ggml_backend_buffer_type_t buft) {
    ggml_backend_dev_t device = ggml_backend_buft_get_device(buft);
    if (!device || buft == ggml_backend_dev_host_buffer_type(device)) {
        device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    }
    return ggml_backend_dev_name(device);
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
    std::unique_ptr<row_cut>     cut;       // null: rows are never cut
    std::vector<bool>            cut_rows;  // of the last decode
    const llama_vocab *          vocab = nullptr;
    std::unique_ptr<batch_owner> batch;
    bool                         plan_only = false;
    int32_t                      n_threads = 1;
    std::vector<int32_t>         end;  // [n_seq] positions in the memory
    std::vector<int32_t>    n_snap;    // [n_seq] positions that snapshots can take back: inside the last decode, once
    std::vector<target_row> rows;      // of the last decode
    bool                    tapped = false;  // the last decode ran with the present taps
    std::vector<int32_t>    taps;

    bool attention_only() const {
        const llama_model * m = model.get();
        return !llama_model_is_recurrent(m) && !llama_model_is_hybrid(m) && !llama_model_has_encoder(m);
    }

    std::string arch() const {
        char buf[128] = "";
        llama_model_meta_val_str(model.get(), "general.architecture", buf, sizeof(buf));
        return buf;
    }
};

target::target(const std::string & path, const target_params & params) : impl_(std::make_unique<impl>()) {
    static std::once_flag once;
    std::call_once(once, llama_backend_init);

    if (params.n_ctx < 0 || params.n_threads < 0 || params.n_rollback < 0 || params.n_batch < 1 || params.n_seq < 1) {
        throw error(errc::argument,
                    "target: n_ctx, n_threads and n_rollback must not be negative, n_batch and n_seq must "
                    "be at least 1");
    }
    impl & t    = *impl_;
    t.path      = path;
    t.plan_only = params.plan_only;
    t.n_threads = params.n_threads > 0 ? params.n_threads : default_threads();
    {
        const gguf_file header(path);
    }  // a named error for missing, truncated and malformed files

    llama_model_params mparams = llama_model_default_params();
    mparams.n_gpu_layers       = params.n_gpu_layers < 0 ? INT32_MAX : params.n_gpu_layers;
    if (params.plan_only) {
        mparams.no_alloc  = true;
        mparams.load_mode = LLAMA_LOAD_MODE_NONE;
    }
    t.model.reset(llama_model_load_from_file(path.c_str(), mparams));
    if (!t.model) {
        throw error(errc::format, path + ": libllama cannot load this target; the log says why");
    }
    if (t.arch() == "dflash") {
        throw error(errc::format, path + ": this is a drafter; give it as the draft, with the model it was made for");
    }
    t.vocab = llama_model_get_vocab(t.model.get());

    const int64_t n_ctx_seq = params.n_ctx > 0 ? params.n_ctx : llama_model_n_ctx_train(t.model.get());
    if (n_ctx_seq * params.n_seq > INT32_MAX) {
        throw error(errc::argument, "target: n_ctx * n_seq is too large");
    }
    const int32_t        n_logits = MAX_DRAFT_ROWS * params.n_seq;
    llama_context_params cparams  = llama_context_default_params();
    cparams.n_ctx                 = (uint32_t) (n_ctx_seq * params.n_seq);
    cparams.n_batch               = (uint32_t) std::max(params.n_batch, n_logits);
    cparams.n_ubatch              = cparams.n_batch;
    cparams.n_seq_max             = (uint32_t) params.n_seq;
    cparams.n_rs_seq              = t.attention_only() ? 0 : (uint32_t) params.n_rollback;
    cparams.n_outputs_max         = (uint32_t) n_logits;
    cparams.n_outputs_max_per_seq = (uint32_t) MAX_DRAFT_ROWS;
    cparams.n_threads             = t.n_threads;
    cparams.n_threads_batch       = t.n_threads;
    cparams.no_perf               = true;
    t.ctx.reset(llama_init_from_model(t.model.get(), cparams));
    if (!t.ctx) {
        throw error(errc::memory, path + ": libllama cannot create a context of " + std::to_string(n_ctx_seq) +
                                      " tokens for each of " + std::to_string(params.n_seq) +
                                      " sequences; use a smaller n_ctx");
    }
    if (params.backend_sampling.value_or(head_device() != "CPU")) {
        t.cut = std::make_unique<row_cut>(t.ctx.get(), params.n_seq, n_vocab());
    }
    t.end.assign(params.n_seq, 0);
    t.n_snap.assign(params.n_seq, 0);
    t.batch = std::make_unique<batch_owner>(n_batch());
}

target::~target() = default;

const std::string & target::path() const {
    return impl_->path;
}

int32_t target::n_ctx() const {
    return (int32_t) llama_n_ctx_seq(impl_->ctx.get());
}

int32_t target::n_seq() const {
    return (int32_t) impl_->end.size();
}

int32_t target::n_batch() const {
    return (int32_t) llama_n_batch(impl_->ctx.get());
}

int32_t target::max_draft_rows() const {
    return MAX_DRAFT_ROWS;
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
    t.taps   = layers;
    t.tapped = false;
}

void target::decode(const std::vector<target_row> & rows) {
    impl & t = *impl_;
    if (rows.empty() || (int64_t) rows.size() > n_batch()) {
        throw error(errc::argument, "decode: expected 1 to " + std::to_string(n_batch()) + " tokens, got " +
                                        std::to_string(rows.size()));
    }
    std::vector<int32_t> end      = t.end;
    int32_t              n_logits = 0;
    llama_batch &        b        = t.batch->batch;
    b.n_tokens                    = (int32_t) rows.size();
    for (int32_t i = 0; i < b.n_tokens; ++i) {
        const target_row & row = rows[i];
        if (row.seq < 0 || row.seq >= n_seq() || row.position != end[row.seq]) {
            throw error(errc::argument,
                        "decode: row " + std::to_string(i) + " does not continue sequence " + std::to_string(row.seq));
        }
        if (row.token < 0 || row.token >= n_vocab()) {
            throw error(errc::argument, "decode: token " + std::to_string(row.token) +
                                            " is outside the vocabulary of " + std::to_string(n_vocab()));
        }
        if (row.position >= n_ctx()) {
            throw error(errc::context_full, "the context of " + std::to_string(n_ctx()) +
                                                " tokens is full; use a larger n_ctx or a shorter prompt");
        }
        end[row.seq]++;
        n_logits += row.logits;
        b.token[i]     = row.token;
        b.pos[i]       = row.position;
        b.n_seq_id[i]  = 1;
        b.seq_id[i][0] = row.seq;
        b.logits[i]    = row.logits;
    }
    if (n_logits > MAX_DRAFT_ROWS * n_seq()) {
        throw error(errc::argument, "decode: at most " + std::to_string(MAX_DRAFT_ROWS * n_seq()) +
                                        " rows can have logits, got " + std::to_string(n_logits));
    }
    const int32_t rc = llama_decode(t.ctx.get(), b);
    if (rc != 0) {
        for (int32_t seq = 0; seq < n_seq(); ++seq) {
            llama_memory_seq_rm(llama_get_memory(t.ctx.get()), seq, t.end[seq], -1);
        }
        throw error(errc::decode, "llama_decode of " + std::to_string(rows.size()) + " tokens failed with code " +
                                      std::to_string(rc));
    }
    llama_synchronize(t.ctx.get());  // so that the time of a pass is that of its work
    for (const target_row & row : rows) {
        const int32_t n_rows = end[row.seq] - t.end[row.seq];
        t.n_snap[row.seq]    = std::min(n_rows - 1, (int32_t) llama_n_rs_seq(t.ctx.get()));
    }
    t.cut_rows.clear();
    for (const target_row & row : rows) {
        t.cut_rows.push_back(t.cut && t.cut->is_cut(row.seq));
    }
    t.end    = end;
    t.rows   = rows;
    t.tapped = true;
}

int32_t target::end(int32_t seq) const {
    return impl_->end.at(seq);
}

int32_t target::n_rows() const {
    return (int32_t) impl_->rows.size();
}

logit_row target::row(int32_t row) const {
    if (row < 0 || row >= (int32_t) impl_->rows.size() || !impl_->rows[row].logits) {
        throw error(errc::argument, "logits: row " + std::to_string(row) + " of the last decode has none");
    }
    llama_context * ctx = impl_->ctx.get();
    if (!impl_->cut_rows[row]) {
        return {llama_get_logits_ith(ctx, row), nullptr, n_vocab()};
    }
    return {llama_get_sampled_logits_ith(ctx, row), llama_get_sampled_candidates_ith(ctx, row),
            (int32_t) llama_get_sampled_logits_count_ith(ctx, row)};
}

const float * target::logits(int32_t row) const {
    const logit_row r = this->row(row);
    if (r.id) {
        throw error(errc::argument, "logits: row " + std::to_string(row) + " of the last decode was cut");
    }
    return r.logit;
}

void target::set_row_cut(int32_t seq, int32_t n_best) {
    if (impl_->cut) {
        impl_->cut->set(seq, n_best);
    }
}

features target::tapped(int32_t first, int32_t n) const {
    if (!impl_->tapped) {
        throw error(errc::argument, "tapped: nothing was decoded since the taps were set");
    }
    if (first < 0 || n < 1 || first + n > (int32_t) impl_->rows.size()) {
        throw error(errc::argument, "tapped: the last decode has " + std::to_string(impl_->rows.size()) + " rows");
    }
    features f;
    f.n_embd   = n_embd();
    f.n_rows   = n;
    f.position = impl_->rows[first].position;
    for (const int32_t layer : impl_->taps) {
        const float * data = llama_get_embeddings_layer_inp(impl_->ctx.get(), (uint32_t) layer);
        f.tap.push_back(data + (size_t) first * f.n_embd);
    }
    return f;
}

bool target::can_truncate(int32_t seq, int32_t n_keep) const {
    const int32_t back = end(seq) - n_keep;
    return back <= 0 || n_keep == 0 || impl_->attention_only() || back <= impl_->n_snap[seq];
}

void target::truncate(int32_t seq, int32_t n_keep) {
    impl & t = *impl_;
    if (n_keep < 0) {
        throw error(errc::argument, "truncate: expected a position, got " + std::to_string(n_keep));
    }
    if (n_keep >= end(seq)) {
        return;
    }
    if (!can_truncate(seq, n_keep) || !llama_memory_seq_rm(llama_get_memory(t.ctx.get()), seq, n_keep, -1)) {
        throw error(errc::incompatible, t.path + ": the memory of architecture " + t.arch() +
                                            " cannot be rolled back to position " + std::to_string(n_keep));
    }
    t.end[seq]    = n_keep;
    t.n_snap[seq] = 0;
}

int32_t target::n_rollback() const {
    return impl_->attention_only() ? n_ctx() : (int32_t) llama_n_rs_seq(impl_->ctx.get());
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

std::string target::head_device() const {
    return device_name(ggml_backend_buffer_get_type(shared().output->buffer));
}

std::vector<memory_use> target::memory() const {
    std::vector<memory_use> uses;
    for (const auto & [buft, bytes] : llama_get_memory_breakdown(impl_->ctx.get())) {
        const std::string device = device_name(buft);
        add_use(uses, {"target weights", device, bytes.model, device == "CPU" && ggml_backend_buft_is_host(buft)});
        add_use(uses, {"target K/V", device, bytes.context});
        add_use(uses, {"target compute", device, bytes.compute});
    }
    // Where rows are cut on the device, libllama also keeps n_vocab sampled values, probabilities and ids of each.
    const size_t kept   = head_device() == "CPU" ? 1 : 4;
    const size_t logits = kept * MAX_DRAFT_ROWS * n_seq() * n_vocab() * sizeof(float);
    const size_t hidden = impl_->taps.size() * n_batch() * n_embd() * sizeof(float);
    add_use(uses, {"target rows", "CPU", logits + hidden});
    if (impl_->plan_only) {
        add_use(uses, {"target compute", head_device(), hidden});
    }
    return uses;
}

const llama_vocab * target::vocab() const {
    return impl_->vocab;
}

}  // namespace dflash2

// The model and its context: opening them, and what they are.
#include "ggml_dflash2/target.h"

#include <algorithm>
#include <mutex>
#include <thread>

#include "draft/gguf-file.h"
#include "engine/target-impl.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

static int32_t default_threads() {
    return std::max(1, (int32_t) std::thread::hardware_concurrency() / 2);
}

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
    const int32_t        n_logits = impl::MAX_DRAFT_ROWS * params.n_seq;
    llama_context_params cparams  = llama_context_default_params();
    cparams.n_ctx                 = (uint32_t) (n_ctx_seq * params.n_seq);
    cparams.n_batch               = (uint32_t) std::max(params.n_batch, n_logits);
    cparams.n_ubatch              = cparams.n_batch;
    cparams.n_seq_max             = (uint32_t) params.n_seq;
    cparams.n_rs_seq              = t.attention_only() ? 0 : (uint32_t) params.n_rollback;
    cparams.n_outputs_max         = (uint32_t) n_logits;
    cparams.n_outputs_max_per_seq = (uint32_t) impl::MAX_DRAFT_ROWS;
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
    return impl::MAX_DRAFT_ROWS;
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

}  // namespace dflash2

#include "engine/row-cut.h"

#include <utility>

#include "draft/top-k.h"

namespace dflash2 {

namespace {

constexpr int32_t FEWEST = 16, MOST = 512;

// libllama asks for one row after the other; all rows of its logits are searched at once when it asks for the first.
struct state {
    int32_t       n  = 0;
    ggml_tensor * of = nullptr;
    top_rows      top;
};

state & state_of(llama_sampler * s) {
    return *static_cast<state *>(s->ctx);
}

void apply(llama_sampler * s, ggml_context * ctx, ggml_cgraph *, llama_sampler_data * data) {
    state &       st  = state_of(s);
    ggml_tensor * row = data->logits;
    ggml_tensor * all = row->view_src ? row->view_src : row;
    if (st.of != all) {
        st.of  = all;
        st.top = build_top_k_by_groups(ctx, ggml_reshape_2d(ctx, all, all->ne[0], ggml_nrows(all)), st.n);
        ggml_set_output(st.top.id);
        ggml_set_output(st.top.value);
    }
    const size_t at  = row->view_offs / all->nb[1];
    data->candidates = ggml_view_1d(ctx, st.top.id, st.n, at * st.top.id->nb[1]);
    data->logits     = ggml_view_1d(ctx, st.top.value, st.n, at * st.top.value->nb[1]);
}

llama_sampler * make_sampler(int32_t n) {
    static llama_sampler_i iface = [] {
        llama_sampler_i i = {};
        i.name            = [](const llama_sampler *) { return "row-cut"; };
        i.apply           = [](llama_sampler *, llama_token_data_array *) {};
        i.free            = [](llama_sampler * s) { delete &state_of(s); };
        i.backend_init    = [](llama_sampler *, ggml_backend_buffer_type_t, uint32_t) { return true; };
        i.backend_apply   = apply;
        i.backend_reset   = [](llama_sampler * s) { state_of(s).of = nullptr; };
        return i;
    }();
    return llama_sampler_init(&iface, new state{n, nullptr, {}});
}

}  // namespace

row_cut::~row_cut() {
    for (int32_t seq = 0; seq < (int32_t) cuts_.size(); ++seq) {
        set(seq, 0);
    }
}

void row_cut::set(int32_t seq, int32_t n_best) {
    int32_t n = n_best > 0 ? FEWEST : 0;
    while (n < n_best) {
        n *= 2;
    }
    n       = n > MOST || n > n_vocab_ ? 0 : n;
    cut & c = cuts_[seq];
    if (n == c.n) {
        return;
    }
    llama_sampler_ptr chain;
    if (n > 0) {
        chain.reset(llama_sampler_chain_init({/*no_perf =*/true}));
        llama_sampler_chain_add(chain.get(), make_sampler(n));
    }
    c.n     = llama_set_sampler(ctx_, seq, chain.get()) ? n : 0;
    c.chain = std::move(chain);  // libllama does not use the one before any more
}

}  // namespace dflash2

#include <algorithm>
#include <cstring>

#include "draft/draft-cache.h"
#include "draft/draft-graph.h"
#include "draft/draft-model-impl.h"
#include "ggml.h"
#include "ggml_dflash2/drafter.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

namespace {

constexpr int32_t INJECT_ROWS = 64;  // rows of an inject-only graph
constexpr size_t  MAX_GRAPHS  = 8;   // kept shapes; the least recently used one goes first

std::string size_2d(const ggml_tensor * t) {
    return "[" + std::to_string(t->ne[0]) + ", " + std::to_string(t->ne[1]) + "]";
}

void check_shared(const draft_model::impl & m, const shared_tensors & s) {
    const auto check = [&](const char * name, const ggml_tensor * own, const ggml_tensor * theirs) {
        if (own) {
            return;
        }
        if (!theirs) {
            throw error(errc::incompatible, m.path + ": neither the drafter nor the target has " + name +
                                                "; open it together with its target");
        }
        if (theirs->ne[0] != m.hp.n_embd || theirs->ne[1] != m.hp.n_vocab) {
            throw error(errc::incompatible, m.path + ": the target's " + name + " is " + size_2d(theirs) +
                                                ", the drafter expects [" + std::to_string(m.hp.n_embd) + ", " +
                                                std::to_string(m.hp.n_vocab) + "]; this drafter is for another target");
        }
    };
    check("token_embd.weight", m.weights.tok_embd, s.tok_embd);
    check("output.weight", m.weights.output, s.output);
}

// Backends for the drafter's device, for the devices that hold shared tensors, and the CPU last, without repeats.
std::vector<ggml_backend_ptr> make_backends(const draft_model::impl & m, const shared_tensors & shared,
                                            int32_t n_threads) {
    std::vector<ggml_backend_dev_t> devices = {m.device};
    for (const ggml_tensor * t : {shared.tok_embd, shared.output}) {
        if (t && t->buffer) {
            if (ggml_backend_dev_t d = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(t->buffer))) {
                devices.push_back(d);
            }
        }
    }
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    devices.erase(std::remove(devices.begin(), devices.end(), cpu), devices.end());
    devices.push_back(cpu);

    std::vector<ggml_backend_ptr> backends;
    for (auto it = devices.begin(); it != devices.end(); ++it) {
        if (std::find(devices.begin(), it, *it) != it) {
            continue;
        }
        backends.emplace_back(ggml_backend_dev_init(*it, nullptr));
        if (!backends.back()) {
            throw error(errc::memory, std::string("device ") + ggml_backend_dev_name(*it) + ": cannot be initialised");
        }
    }
    using set_n_threads_t = void (*)(ggml_backend_t, int);
    if (auto set = (set_n_threads_t) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu),
                                                                       "ggml_backend_set_n_threads")) {
        set(backends.back().get(), n_threads);
    }
    return backends;
}

template <typename T>
void set_input(ggml_tensor * t, const std::vector<T> & data) {
    if (t) {
        ggml_backend_tensor_set(t, data.data(), 0, data.size() * sizeof(T));
    }
}

}  // namespace

struct graph_drafter::impl {
    std::shared_ptr<const draft_model>        model;
    shared_tensors                            shared;
    std::vector<ggml_backend_ptr>             backends;
    draft_cache                               cache;
    int32_t                                   n_ctx;
    std::vector<std::unique_ptr<draft_graph>> graphs;  // most recently used first

    // Context: positions begin .. end - 1. Those from `injected` on are still staged on the host.
    int32_t             begin    = 0;
    int32_t             end      = 0;
    int32_t             injected = 0;
    std::vector<float>  staged;  // [n_taps * n_embd, end - injected]
    const draft_graph * last = nullptr;

    impl(std::shared_ptr<const draft_model> m, const shared_tensors & s, const graph_drafter_params & p)
        : model(std::move(m)),
          shared(s),
          backends(make_backends(model->get(), s, p.n_threads)),
          cache(model->hparams(), p.n_ctx, p.kv_f32 ? GGML_TYPE_F32 : GGML_TYPE_F16, model->get().device),
          n_ctx(p.n_ctx) {}

    const draft_hparams & hp() const { return model->hparams(); }

    size_t row_size() const { return (size_t) hp().n_taps() * hp().n_embd; }

    draft_graph & graph(int32_t n_rows, int32_t n_draft, int32_t context_end) {
        graph_shape shape = {n_rows, n_draft, 0, 0};
        if (n_draft > 0) {
            shape.n_kv_sliding = cache.layout(true).n_visible(begin, context_end);
            shape.n_kv_full    = cache.layout(false).n_visible(begin, context_end);
        }
        auto it = std::find_if(graphs.begin(), graphs.end(), [&](const auto & g) { return g->shape() == shape; });
        if (it == graphs.end()) {
            std::vector<ggml_backend_t> list;
            for (const ggml_backend_ptr & b : backends) {
                list.push_back(b.get());
            }
            auto g = std::make_unique<draft_graph>(model->get(), cache, shared, list, shape);
            if (graphs.size() == MAX_GRAPHS) {
                last = graphs.back().get() == last ? nullptr : last;
                graphs.pop_back();
            }
            it = graphs.insert(graphs.end(), std::move(g));
        }
        std::rotate(graphs.begin(), it, it + 1);
        return *graphs.front();
    }

    // Sets the inputs that inject the first n_real staged rows.
    void set_rows(draft_graph & g, int32_t n_real) {
        const int32_t        n_rows = g.shape().n_rows;
        std::vector<int32_t> pos(n_rows, 0);
        for (int32_t i = 0; i < n_real; ++i) {
            pos[i] = injected + i;
        }
        set_input(g.in_row_pos, pos);

        std::vector<int64_t> cells;
        cache.layout(true).fill_rows(injected, n_real, n_rows, cells);
        set_input(g.in_sliding.rows, cells);
        cache.layout(false).fill_rows(injected, n_real, n_rows, cells);
        set_input(g.in_full.rows, cells);

        std::vector<float> rows((size_t) n_rows * row_size(), 0.0f);
        std::copy_n(staged.begin(), (size_t) n_real * row_size(), rows.begin());
        set_input(g.in_features, rows);
    }

    void drop_staged(int32_t n) {
        staged.erase(staged.begin(), staged.begin() + (size_t) n * row_size());
        injected += n;
    }

    // Injects staged rows until at most n_keep are left.
    void flush(int32_t n_keep) {
        while (end - injected > n_keep) {
            const int32_t n = std::min(end - injected, INJECT_ROWS);
            draft_graph & g = graph(INJECT_ROWS, 0, 0);
            set_rows(g, n);
            g.compute();
            drop_staged(n);
        }
    }

    void set_block(draft_graph & g, token_id anchor) {
        const int32_t        B = g.shape().n_draft + 1;
        std::vector<int32_t> tokens(B, hp().mask_token_id);
        std::vector<int32_t> pos(B);
        std::vector<int64_t> cells(B);
        tokens[0] = anchor;
        for (int32_t i = 0; i < B; ++i) {
            pos[i]   = end + i;
            cells[i] = i;
        }
        set_input(g.in_tokens, tokens);
        set_input(g.in_pos, pos);
        set_input(g.in_cells, cells);

        std::vector<uint16_t> mask;
        if (g.in_sliding.mask) {
            cache.layout(true).fill_mask(begin, end, g.shape().n_kv_sliding, B, hp().causal, mask);
            set_input(g.in_sliding.mask, mask);
        }
        if (g.in_full.mask) {
            cache.layout(false).fill_mask(begin, end, g.shape().n_kv_full, B, hp().causal, mask);
            set_input(g.in_full.mask, mask);
        }
    }

    lattice read_lattice(const draft_graph & g) const {
        lattice lat;
        lat.top_k      = hp().selector_top_k;
        lat.n_pos      = g.shape().n_draft;
        const size_t K = lat.top_k;
        lat.cand.resize(K * lat.n_pos);
        lat.score.resize(K * K * lat.n_pos);  // rows from > 0 of position 0 stay 0
        ggml_backend_tensor_get(g.out_cand, lat.cand.data(), 0, ggml_nbytes(g.out_cand));
        ggml_backend_tensor_get(g.out_score_first, lat.score.data(), 0, ggml_nbytes(g.out_score_first));
        if (g.out_score) {
            ggml_backend_tensor_get(g.out_score, lat.score.data() + K * K, 0, ggml_nbytes(g.out_score));
        }
        return lat;
    }
};

graph_drafter::graph_drafter(std::shared_ptr<const draft_model> model, const shared_tensors & shared,
                             const graph_drafter_params & params) {
    if (params.n_ctx < 1 || params.n_threads < 1) {
        throw error(errc::argument, "graph_drafter: n_ctx and n_threads must be at least 1");
    }
    check_shared(model->get(), shared);
    impl_ = std::make_unique<impl>(std::move(model), shared, params);
    impl_->graph(impl_->hp().block_size, max_draft(), 0);  // refuses here, not in the first round
}

graph_drafter::~graph_drafter() = default;

void graph_drafter::reset() {
    impl & d = *impl_;
    d.begin = d.end = d.injected = 0;
    d.staged.clear();
}

void graph_drafter::inject(const features & f) {
    impl & d = *impl_;
    if ((int32_t) f.tap.size() != d.hp().n_taps() || f.n_embd != d.hp().n_embd) {
        throw error(errc::argument, "inject: expected " + std::to_string(d.hp().n_taps()) + " taps of " +
                                        std::to_string(d.hp().n_embd) + " values, got " + std::to_string(f.tap.size()) +
                                        " of " + std::to_string(f.n_embd));
    }
    if (d.begin == d.end) {
        d.begin = d.end = d.injected = f.position;
    }
    if (f.position != d.end || f.position < 0) {
        throw error(errc::argument, "inject: expected rows for position " + std::to_string(d.end) + ", got " +
                                        std::to_string(f.position));
    }
    if (f.n_rows > d.n_ctx - d.end) {
        throw error(errc::context_full, "inject: position " + std::to_string(d.end + f.n_rows) +
                                            " is outside the draft context of " + std::to_string(d.n_ctx));
    }
    for (int32_t i = 0; i < f.n_rows; ++i) {
        for (const float * tap : f.tap) {
            const float * row = tap + (size_t) i * f.n_embd;
            d.staged.insert(d.staged.end(), row, row + f.n_embd);
        }
    }
    d.end += f.n_rows;
    d.flush(INJECT_ROWS);
}

lattice graph_drafter::draft(token_id anchor, int32_t position, int32_t n_draft) {
    impl & d = *impl_;
    if (n_draft < 1 || n_draft > max_draft()) {
        throw error(errc::argument, "draft: n_draft must be in [1, " + std::to_string(max_draft()) + "], got " +
                                        std::to_string(n_draft));
    }
    if (anchor < 0 || anchor >= d.hp().n_vocab) {
        throw error(errc::argument, "draft: token " + std::to_string(anchor) + " is outside the vocabulary of " +
                                        std::to_string(d.hp().n_vocab));
    }
    if (d.begin == d.end) {
        d.begin = d.end = d.injected = position;  // no context: the block sees itself only
    }
    if (position != d.end) {
        throw error(errc::argument, "draft: the context ends at position " + std::to_string(d.end) +
                                        ", the anchor is at " + std::to_string(position));
    }
    d.flush(d.hp().block_size);

    draft_graph & g = d.graph(d.hp().block_size, n_draft, d.end);
    const int32_t n = d.end - d.injected;
    d.set_rows(g, n);
    d.set_block(g, anchor);
    g.compute();
    d.drop_staged(n);
    d.last = &g;
    return d.read_lattice(g);
}

int32_t graph_drafter::max_draft() const {
    return impl_->hp().block_size - 1;
}

int32_t graph_drafter::context_window() const {
    return impl_->hp().context_window();
}

const std::vector<int32_t> & graph_drafter::target_layers() const {
    return impl_->hp().target_layers;
}

std::vector<float> graph_drafter::last_hidden() const {
    if (!impl_->last) {
        throw error(errc::argument, "last_hidden: nothing was drafted yet");
    }
    const ggml_tensor * t = impl_->last->out_hidden;
    std::vector<float>  out(ggml_nelements(t));
    ggml_backend_tensor_get(t, out.data(), 0, ggml_nbytes(t));
    return out;
}

int32_t graph_drafter::n_embd() const {
    return impl_->hp().n_embd;
}

size_t graph_drafter::cache_bytes() const {
    return impl_->cache.size_bytes();
}

}  // namespace dflash2

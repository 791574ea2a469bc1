#include <algorithm>
#include <cstring>

#include "draft/backends.h"
#include "draft/draft-cache.h"
#include "draft/draft-graph.h"
#include "draft/draft-model-impl.h"
#include "ggml.h"
#include "ggml_dflash2/drafter.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

namespace {

constexpr int32_t     INJECT_ROWS  = 64;  // rows of an inject-only graph
constexpr graph_shape INJECT_SHAPE = {1, INJECT_ROWS, 0, 0, 0};
constexpr size_t      MAX_GRAPHS   = 8;        // kept shapes; the least recently used one goes first
constexpr int32_t     MAX_CTX      = 1 << 30;  // keeps positions and cells inside int32

template <typename T>
void set_input(ggml_tensor * t, const std::vector<T> & data) {
    if (t) {
        ggml_backend_tensor_set(t, data.data(), 0, data.size() * sizeof(T));
    }
}

// What the drafter knows of one sequence: positions begin .. end - 1, those from `injected` on still staged on the
// host.
struct draft_context {
    int32_t            begin    = 0;
    int32_t            end      = 0;
    int32_t            injected = 0;
    int32_t            high     = 0;  // largest `injected` since begin: what may have been overwritten in the rings
    std::vector<float> staged;        // [n_taps * n_embd, end - injected]

    void restart(int32_t position) {
        begin = end = injected = high = position;
        staged.clear();
    }
};

}  // namespace

struct graph_drafter::impl {
    std::shared_ptr<const draft_model>        model;
    shared_tensors                            shared;
    std::vector<ggml_backend_ptr>             backends;
    draft_cache                               cache;
    int32_t                                   n_ctx;
    std::vector<draft_context>                contexts;  // [n_seq]
    std::vector<std::unique_ptr<draft_graph>> graphs;    // most recently used first
    const draft_graph *                       last = nullptr;
    std::vector<bool>                         drafted;  // [n_seq] sequences that `last` drafted
    std::unique_ptr<node_watch>               watch = std::make_unique<node_watch>(std::vector<std::string>());

    impl(std::shared_ptr<const draft_model> m, const shared_tensors & s, const graph_drafter_params & p)
        : model(std::move(m)),
          shared(s),
          backends(make_backends(model->get(), s, p.n_threads)),
          cache(model->hparams(), p.n_ctx, p.n_seq, p.kv_f32 ? GGML_TYPE_F32 : GGML_TYPE_F16, model->get().device),
          n_ctx(p.n_ctx),
          contexts(p.n_seq) {}

    const draft_hparams & hp() const { return model->hparams(); }

    size_t row_size() const { return (size_t) hp().n_taps() * hp().n_embd; }

    draft_context & context(int32_t seq, const char * who) {
        if (seq < 0 || seq >= (int32_t) contexts.size()) {
            throw error(errc::argument, std::string(who) + ": sequence " + std::to_string(seq) + " of " +
                                            std::to_string(contexts.size()));
        }
        return contexts[seq];
    }

    draft_graph & graph(const graph_shape & shape) {
        auto it = std::find_if(graphs.begin(), graphs.end(), [&](const auto & g) { return g->shape() == shape; });
        if (it == graphs.end()) {
            std::vector<ggml_backend_t> list;
            for (const ggml_backend_ptr & b : backends) {
                list.push_back(b.get());
            }
            auto g = std::make_unique<draft_graph>(model->get(), cache, shared, list, shape);
            g->watch(watched());
            if (graphs.size() == MAX_GRAPHS) {
                last = graphs.back().get() == last ? nullptr : last;
                graphs.pop_back();
            }
            it = graphs.insert(graphs.end(), std::move(g));
        }
        std::rotate(graphs.begin(), it, it + 1);
        return *graphs.front();
    }

    node_watch * watched() { return watch->nodes().empty() ? nullptr : watch.get(); }

    graph_shape round_shape(int32_t n_seq, int32_t n_draft) const {
        graph_shape shape = {n_seq, n_seq * hp().block_size, n_draft, 0, 0};
        for (int32_t seq = 0; seq < n_seq; ++seq) {
            const draft_context & c = contexts[seq];
            shape.n_kv_sliding      = std::max(shape.n_kv_sliding, cache.layout(true).n_visible(c.begin, c.end));
            shape.n_kv_full         = std::max(shape.n_kv_full, cache.layout(false).n_visible(c.begin, c.end));
        }
        return shape;
    }

    // Collects the inputs of the rows to inject, sequence after sequence.
    struct row_inputs {
        std::vector<int32_t> pos;
        std::vector<int64_t> sliding;
        std::vector<int64_t> full;
        std::vector<float>   features;
    };

    // Takes up to n_rows staged rows of a sequence, padded to n_rows.
    void add_rows(row_inputs & in, int32_t seq, int32_t n_rows) {
        draft_context & c      = contexts[seq];
        const int32_t   n_real = std::min(n_rows, c.end - c.injected);
        for (int32_t i = 0; i < n_rows; ++i) {
            in.pos.push_back(i < n_real ? c.injected + i : 0);
        }
        cache.layout(true).add_rows(seq, c.injected, n_real, n_rows, in.sliding);
        cache.layout(false).add_rows(seq, c.injected, n_real, n_rows, in.full);
        const auto taken = c.staged.begin() + (ptrdiff_t) (n_real * row_size());
        in.features.insert(in.features.end(), c.staged.begin(), taken);
        in.features.resize(in.pos.size() * row_size(), 0.0f);

        c.staged.erase(c.staged.begin(), taken);
        c.injected += n_real;
        c.high = std::max(c.high, c.injected);
    }

    static void set_rows(draft_graph & g, const row_inputs & in) {
        set_input(g.in_row_pos, in.pos);
        set_input(g.in_sliding.rows, in.sliding);
        set_input(g.in_full.rows, in.full);
        set_input(g.in_features, in.features);
    }

    // Injects a sequence's staged rows until at most n_keep are left.
    void flush(int32_t seq, int32_t n_keep) {
        const draft_context & c = contexts[seq];
        while (c.end - c.injected > n_keep) {
            draft_graph & g = graph(INJECT_SHAPE);
            row_inputs    in;
            add_rows(in, seq, INJECT_ROWS);
            set_rows(g, in);
            g.compute();
        }
    }

    void set_blocks(draft_graph & g, const std::vector<draft_job> & jobs) {
        const graph_shape &  shape = g.shape();
        const int32_t        B     = shape.n_draft + 1;
        const ring_layout &  near  = cache.layout(true);
        const ring_layout &  all   = cache.layout(false);
        std::vector<int32_t> tokens((size_t) B * shape.n_seq, hp().mask_token_id);
        std::vector<int32_t> anchors(shape.n_seq, hp().mask_token_id);
        for (const draft_job & job : jobs) {
            anchors[job.seq] = tokens[(size_t) job.seq * B] = job.anchor;
        }
        std::vector<int32_t>  pos;
        std::vector<int64_t>  near_rows, all_rows;
        std::vector<uint16_t> near_mask, all_mask;
        for (int32_t seq = 0; seq < shape.n_seq; ++seq) {
            const draft_context & c = contexts[seq];
            for (int32_t i = 0; i < B; ++i) {
                pos.push_back(c.end + i);
                near_rows.push_back(near.row(seq, i));
                all_rows.push_back(all.row(seq, i));
            }
            if (g.in_sliding.mask) {
                near.add_mask(c.begin, c.end, shape.n_kv_sliding, B, hp().causal, near_mask);
            }
            if (g.in_full.mask) {
                all.add_mask(c.begin, c.end, shape.n_kv_full, B, hp().causal, all_mask);
            }
        }
        set_input(g.in_tokens, tokens);
        set_input(g.in_anchors, anchors);
        set_input(g.in_pos, pos);
        set_input(g.in_sliding.block, near_rows);
        set_input(g.in_full.block, all_rows);
        set_input(g.in_sliding.mask, near_mask);
        set_input(g.in_full.mask, all_mask);
    }

    std::vector<lattice> read_lattices(const draft_graph & g, const std::vector<draft_job> & jobs) const {
        const size_t K = hp().selector_top_k;
        const size_t D = g.shape().n_draft;

        std::vector<token_id> cand(ggml_nelements(g.out_cand));
        std::vector<float>    first(ggml_nelements(g.out_score_first));
        std::vector<float>    rest(g.out_score ? ggml_nelements(g.out_score) : 0);
        ggml_backend_tensor_get(g.out_cand, cand.data(), 0, ggml_nbytes(g.out_cand));
        ggml_backend_tensor_get(g.out_score_first, first.data(), 0, ggml_nbytes(g.out_score_first));
        if (g.out_score) {
            ggml_backend_tensor_get(g.out_score, rest.data(), 0, ggml_nbytes(g.out_score));
        }
        std::vector<lattice> out;
        for (const draft_job & job : jobs) {
            lattice lat;
            lat.top_k = (int32_t) K;
            lat.n_pos = (int32_t) D;
            lat.cand.assign(cand.begin() + job.seq * K * D, cand.begin() + (job.seq + 1) * K * D);
            lat.score.assign(K * K * D, 0.0f);  // rows from > 0 of position 0 stay 0
            std::copy_n(first.begin() + job.seq * K, K, lat.score.begin());
            std::copy_n(rest.begin() + job.seq * K * K * (D - 1), K * K * (D - 1), lat.score.begin() + K * K);
            out.push_back(std::move(lat));
        }
        return out;
    }

    void check(const std::vector<draft_job> & jobs) {
        std::vector<bool> seen(contexts.size(), false);
        for (const draft_job & job : jobs) {
            draft_context & c = context(job.seq, "draft");
            if (seen[job.seq]) {
                throw error(errc::argument, "draft: sequence " + std::to_string(job.seq) + " is listed twice");
            }
            seen[job.seq] = true;
            if (job.anchor < 0 || job.anchor >= hp().n_vocab) {
                throw error(errc::argument, "draft: token " + std::to_string(job.anchor) +
                                                " is outside the vocabulary of " + std::to_string(hp().n_vocab));
            }
            if (job.position < 0 || job.position > n_ctx) {
                throw error(errc::argument, "draft: expected an anchor position in [0, " + std::to_string(n_ctx) +
                                                "], got " + std::to_string(job.position));
            }
            if (c.begin == c.end) {
                c.restart(job.position);  // no context: the block sees itself only
            }
            if (job.position != c.end) {
                throw error(errc::argument, "draft: the context ends at position " + std::to_string(c.end) +
                                                ", the anchor is at " + std::to_string(job.position));
            }
        }
    }
};

graph_drafter::graph_drafter(std::shared_ptr<const draft_model> model, const shared_tensors & shared,
                             const graph_drafter_params & params) {
    if (params.n_ctx < 1 || params.n_ctx > MAX_CTX || params.n_seq < 1 || params.n_threads < 1) {
        throw error(errc::argument, "graph_drafter: expected n_ctx in [1, " + std::to_string(MAX_CTX) +
                                        "] and n_seq and n_threads of at least 1, got " + std::to_string(params.n_ctx) +
                                        ", " + std::to_string(params.n_seq) + " and " +
                                        std::to_string(params.n_threads));
    }
    check_shared(model->get(), shared);
    impl_ = std::make_unique<impl>(std::move(model), shared, params);
    impl_->graph(impl_->round_shape(1, max_draft()));  // refuses here, not in the first round
}

graph_drafter::~graph_drafter() = default;

bool graph_drafter::truncate(int32_t seq, int32_t n_keep) {
    impl &          d = *impl_;
    draft_context & c = d.context(seq, "truncate");
    if (n_keep == 0) {
        c.restart(0);
        return true;
    }
    // What the next draft looks at must have been injected, and the rings of sliding layers must still hold it.
    const std::vector<uint8_t> & sliding = d.hp().is_sliding;
    const bool                   slides  = std::find(sliding.begin(), sliding.end(), 1) != sliding.end();
    const int32_t                window  = std::max(0, n_keep - std::max(0, d.hp().sliding_window - 1));
    const int32_t                needed  = d.hp().context_window() > 0 ? window : 0;
    if (n_keep < 0 || n_keep > c.end || needed < c.begin ||
        (slides && window < d.cache.layout(true).oldest(c.begin, c.high))) {
        c.restart(0);
        return false;
    }
    c.end      = n_keep;
    c.injected = std::min(c.injected, n_keep);
    c.staged.resize((size_t) (c.end - c.injected) * d.row_size());
    return true;
}

void graph_drafter::inject(int32_t seq, const features & f) {
    impl &          d = *impl_;
    draft_context & c = d.context(seq, "inject");
    if ((int32_t) f.tap.size() != d.hp().n_taps() || f.n_embd != d.hp().n_embd) {
        throw error(errc::argument, "inject: expected " + std::to_string(d.hp().n_taps()) + " taps of " +
                                        std::to_string(d.hp().n_embd) + " values, got " + std::to_string(f.tap.size()) +
                                        " of " + std::to_string(f.n_embd));
    }
    if (f.position < 0 || (c.begin != c.end && f.position != c.end)) {
        throw error(errc::argument, "inject: expected rows for position " + std::to_string(c.end) + ", got " +
                                        std::to_string(f.position));
    }
    if (f.n_rows < 0) {
        throw error(errc::argument, "inject: expected 0 or more rows, got " + std::to_string(f.n_rows));
    }
    if (f.n_rows > d.n_ctx - f.position) {
        throw error(errc::context_full, "inject: position " + std::to_string((int64_t) f.position + f.n_rows) +
                                            " is outside the draft context of " + std::to_string(d.n_ctx));
    }
    if (c.begin == c.end) {
        c.restart(f.position);
    }
    for (int32_t i = 0; i < f.n_rows; ++i) {
        for (const float * tap : f.tap) {
            const float * row = tap + (size_t) i * f.n_embd;
            c.staged.insert(c.staged.end(), row, row + f.n_embd);
        }
    }
    c.end += f.n_rows;
    d.flush(seq, INJECT_ROWS);
}

std::vector<lattice> graph_drafter::draft(const std::vector<draft_job> & jobs, int32_t n_draft) {
    impl & d = *impl_;
    if (jobs.empty() || n_draft < 1 || n_draft > max_draft()) {
        throw error(errc::argument, "draft: expected at least one sequence and n_draft in [1, " +
                                        std::to_string(max_draft()) + "], got " + std::to_string(jobs.size()) +
                                        " and " + std::to_string(n_draft));
    }
    d.check(jobs);
    int32_t n_seq = 0;
    for (const draft_job & job : jobs) {
        d.flush(job.seq, d.hp().block_size);
        n_seq = std::max(n_seq, job.seq + 1);
    }

    draft_graph &    g = d.graph(d.round_shape(n_seq, n_draft));
    impl::row_inputs in;
    for (int32_t seq = 0; seq < n_seq; ++seq) {
        d.add_rows(in, seq, d.hp().block_size);
    }
    d.set_rows(g, in);
    d.set_blocks(g, jobs);
    g.compute();
    d.last = &g;
    d.drafted.assign(d.contexts.size(), false);
    for (const draft_job & job : jobs) {
        d.drafted[job.seq] = true;
    }
    return d.read_lattices(g, jobs);
}

int32_t graph_drafter::max_draft() const {
    return impl_->hp().block_size - 1;
}

int32_t graph_drafter::n_seq() const {
    return (int32_t) impl_->contexts.size();
}

int32_t graph_drafter::context_window() const {
    const int32_t window = impl_->hp().context_window();
    return window > 0 ? window + SLACK : 0;
}

const std::vector<int32_t> & graph_drafter::target_layers() const {
    return impl_->hp().target_layers;
}

std::vector<float> graph_drafter::last_hidden(int32_t seq) const {
    if (!impl_->last || seq < 0 || seq >= n_seq() || !impl_->drafted[seq]) {
        throw error(errc::argument, "last_hidden: sequence " + std::to_string(seq) + " was not drafted last");
    }
    const ggml_tensor * t = impl_->last->out_hidden;
    std::vector<float>  out((size_t) (t->ne[0] * t->ne[1]));
    ggml_backend_tensor_get(t, out.data(), (size_t) seq * t->nb[2], out.size() * sizeof(float));
    return out;
}

std::vector<graph_op> graph_drafter::ops(int32_t seqs, int32_t n_draft) const {
    if (seqs < 1 || seqs > n_seq() || n_draft < 0 || n_draft > max_draft()) {
        throw error(errc::argument, "ops: expected n_seq in [1, " + std::to_string(n_seq()) + "] and n_draft in [0, " +
                                        std::to_string(max_draft()) + "], got " + std::to_string(seqs) + " and " +
                                        std::to_string(n_draft));
    }
    return impl_->graph(n_draft ? impl_->round_shape(seqs, n_draft) : INJECT_SHAPE).ops();
}

void graph_drafter::watch(const std::vector<std::string> & names) {
    impl & d = *impl_;
    d.watch  = std::make_unique<node_watch>(names);
    for (const std::unique_ptr<draft_graph> & g : d.graphs) {
        g->watch(d.watched());
    }
}

const std::map<std::string, watched_node> & graph_drafter::watched() const {
    return impl_->watch->nodes();
}

int32_t graph_drafter::n_embd() const {
    return impl_->hp().n_embd;
}

size_t graph_drafter::cache_bytes() const {
    return impl_->cache.size_bytes();
}

}  // namespace dflash2

#include <algorithm>
#include <chrono>
#include <cstring>

#include "draft/backends.h"
#include "draft/draft-cache.h"
#include "draft/draft-graph.h"
#include "draft/draft-model-impl.h"
#include "draft/embedding.h"
#include "draft/feature-stage.h"
#include "ggml.h"
#include "ggml_dflash2/drafter.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

namespace {

constexpr size_t  MAX_GRAPHS = 12;       // kept shapes; the least recently used one goes first
constexpr int32_t MAX_CTX    = 1 << 30;  // keeps positions and cells inside int32

// A graph that only injects rows of one sequence.
graph_shape inject_shape(int32_t n_rows) {
    return {1, n_rows, 0, 0, 0, false, false};
}

// What the drafter knows of one sequence: positions begin .. end - 1, those from `injected` on still staged.
struct draft_context {
    int32_t begin    = 0;
    int32_t end      = 0;
    int32_t injected = 0;
    int32_t high     = 0;  // largest `injected` since begin: what may have been overwritten in the rings

    int32_t n_staged() const { return end - injected; }

    void restart(int32_t position) { begin = end = injected = high = position; }
};

}  // namespace

struct graph_drafter::impl {
    std::shared_ptr<const draft_model>        model;
    shared_tensors                            shared;
    std::vector<ggml_backend_ptr>             backends;
    draft_cache                               cache;
    feature_stage                             stage;
    embedding                                 tok_embd;
    std::vector<float>                        mask_row;  // [n_embd] embedding of the mask token
    int32_t                                   n_ctx;
    std::vector<draft_context>                contexts;  // [n_seq]
    std::vector<std::unique_ptr<draft_graph>> graphs;    // most recently used first
    const draft_graph *                       last = nullptr;
    bool                                      groups;  // see graph_shape
    bool                                      pad = false;
    std::vector<bool>                         drafted;  // [n_seq] sequences that `last` drafted
    std::unique_ptr<node_watch>               watch    = std::make_unique<node_watch>(std::vector<std::string>());
    int64_t                                   n_built  = 0;
    int64_t                                   n_passes = 0;

    impl(std::shared_ptr<const draft_model> m, const shared_tensors & s, const graph_drafter_params & p)
        : model(std::move(m)),
          shared(s),
          backends(make_backends(model->get(), s, p.n_threads)),
          cache(model->hparams(), p.n_ctx, p.n_seq, p.kv_f32 ? GGML_TYPE_F32 : GGML_TYPE_F16, model->get().device,
                model->get().plan_only),
          stage(model->hparams(), p.n_seq, model->get().device, model->get().plan_only),
          tok_embd(model->get().weights.tok_embd ? model->get().weights.tok_embd : s.tok_embd),
          mask_row(model->hparams().n_embd),
          n_ctx(p.n_ctx),
          contexts(p.n_seq),
          groups(p.top_k_by_groups.value_or(!is_cpu(model->get().device))) {
        if (!plan_only()) {
            tok_embd.read(hp().mask_token_id, mask_row.data());
        }
    }

    bool has_all_tensors() const {
        return (model->has_embd() || shared.tok_embd) && (model->has_head() || shared.output);
    }

    const draft_hparams & hp() const { return model->hparams(); }

    bool plan_only() const { return model->get().plan_only; }

    ggml_backend_t device() const { return backends[0].get(); }

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
            ggml_tensor * head = model->has_head() ? model->get().weights.output : shared.output;
            auto          g    = std::make_unique<draft_graph>(model->get(), cache, stage, head, list, shape);
            n_built++;
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

    // Planned: as many graphs as are ever kept, of the largest shapes.
    std::vector<memory_use> graph_memory() {
        std::vector<memory_use> uses;
        const auto add = [&](const draft_graph & g) { uses.insert(uses.end(), g.memory().begin(), g.memory().end()); };
        if (!plan_only()) {
            for (const std::unique_ptr<draft_graph> & g : graphs) {
                add(*g);
            }
        } else if (has_all_tensors()) {
            const int32_t            n_seq   = (int32_t) contexts.size();
            const graph_shape        largest = {n_seq,
                                                n_seq * hp().block_size,
                                                hp().block_size - 1,
                                                cache.layout(true).n_cells,
                                                cache.layout(false).n_cells,
                                                groups,
                                                !is_cpu(model->get().device)};
            std::vector<graph_shape> shapes(MAX_GRAPHS, largest);
            shapes[0] = inject_shape(feature_stage::N_STAGED);
            shapes[1] = inject_shape(stage.n_prompt());
            for (const graph_shape & shape : shapes) {
                add(graph(shape));
            }
        }
        return uses;
    }

    node_watch * watched() { return watch->nodes().empty() ? nullptr : watch.get(); }

    // Rows of a graph that injects n of at most `most`. Accelerators do best with few shapes, CPUs with little padding.
    int32_t n_rows(int32_t n, int32_t most) const {
        int32_t rows = is_cpu(model->get().device) ? 4 : most;
        while (rows < n) {
            rows *= 2;
        }
        return std::min(rows, most);
    }

    // Of a sequence's staged rows, those that its next draft injects: all, or none when they are too many.
    int32_t n_riding(int32_t seq) const {
        const int32_t n = contexts[seq].n_staged();
        return n > hp().block_size ? 0 : n;
    }

    graph_shape round_shape(int32_t n_seq, int32_t n_draft) const {
        graph_shape shape = {n_seq, 0, n_draft, 0, 0, groups, pad};
        for (int32_t seq = 0; seq < n_seq; ++seq) {
            const draft_context & c = contexts[seq];
            shape.n_rows            = std::max(shape.n_rows, n_seq * n_rows(n_riding(seq), hp().block_size));
            shape.n_kv_sliding      = std::max(shape.n_kv_sliding, cache.layout(true).n_visible(c.begin, c.end));
            shape.n_kv_full         = std::max(shape.n_kv_full, cache.layout(false).n_visible(c.begin, c.end));
        }
        return shape;
    }

    // Milliseconds of a graph. Its first passes load kernels and record what is replayed later.
    double time_of(const graph_shape & shape) {
        draft_graph & g    = graph(shape);
        double        best = 1e9;
        for (int32_t i = 0; i < 6; ++i) {
            const auto begin = std::chrono::steady_clock::now();
            g.compute();
            g.wait();
            const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - begin;
            best                                               = std::min(best, ms.count());
        }
        return best;
    }

    // On accelerators first passes take many times as long as later ones, and which kernels are fast differs.
    void warm_up() {
        if (is_cpu(model->get().device)) {
            return;
        }
        time_of(inject_shape(feature_stage::N_STAGED));
        time_of(inject_shape(stage.n_prompt()));
        const double ms = time_of(round_shape(1, hp().block_size - 1));
        pad             = true;
        pad             = time_of(round_shape(1, hp().block_size - 1)) < 0.98 * ms;
        for (int32_t n_draft = 1; n_draft < hp().block_size - 1; ++n_draft) {
            time_of(round_shape(1, n_draft));
        }
    }

    // What goes to the ring, sequence after sequence.
    struct row_inputs {
        std::vector<int32_t> staged;
        std::vector<int32_t> pos;
        std::vector<int64_t> sliding;
        std::vector<int64_t> full;
    };

    // Takes n_real rows of a sequence that are staged from row `first` on, padded to n_rows.
    void add_rows(row_inputs & in, int32_t seq, int32_t first, int32_t n_real, int32_t n_rows) {
        draft_context & c = contexts[seq];
        for (int32_t i = 0; i < n_rows; ++i) {
            in.staged.push_back(i < n_real ? first + i : stage.zero_row());
            in.pos.push_back(i < n_real ? c.injected + i : 0);
        }
        cache.layout(true).add_rows(seq, c.injected, n_real, n_rows, in.sliding);
        cache.layout(false).add_rows(seq, c.injected, n_real, n_rows, in.full);
        c.injected += n_real;
        c.high = std::max(c.high, c.injected);
    }

    static void set_rows(draft_graph & g, const row_inputs & in) {
        g.inputs.set(g.in_staged, in.staged);
        g.inputs.set(g.in_row_pos, in.pos);
        g.inputs.set(g.in_sliding.rows, in.sliding);
        g.inputs.set(g.in_full.rows, in.full);
    }

    // Starts to inject n_real rows that are staged from row `first` on.
    void start_inject(int32_t seq, int32_t first, int32_t n_real, int32_t n_rows) {
        draft_graph & g = graph(inject_shape(n_rows));
        row_inputs    in;
        add_rows(in, seq, first, n_real, n_rows);
        g.wait();
        set_rows(g, in);
        g.compute();
        n_passes++;
    }

    // Injects a sequence's staged rows.
    void flush(int32_t seq) {
        const int32_t n = contexts[seq].n_staged();
        start_inject(seq, stage.row(seq), n, n_rows(n, feature_stage::N_STAGED));
    }

    void set_blocks(draft_graph & g, const std::vector<draft_job> & jobs) {
        const graph_shape &  shape = g.shape();
        const int32_t        B     = shape.n_draft + 1;
        const ring_layout &  near  = cache.layout(true);
        const ring_layout &  all   = cache.layout(false);
        std::vector<int32_t> anchors(shape.n_seq, hp().mask_token_id);
        float *              embd = g.inputs.data<float>(g.in_embd);
        for (int32_t i = 0; i < B * shape.n_seq; ++i) {
            std::copy(mask_row.begin(), mask_row.end(), embd + (size_t) i * hp().n_embd);
        }
        for (const draft_job & job : jobs) {
            anchors[job.seq] = job.anchor;
            tok_embd.read(job.anchor, embd + (size_t) job.seq * B * hp().n_embd);
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
        g.inputs.set(g.in_anchors, anchors);
        g.inputs.set(g.in_pos, pos);
        g.inputs.set(g.in_sliding.block, near_rows);
        g.inputs.set(g.in_full.block, all_rows);
        g.inputs.set(g.in_sliding.mask, near_mask);
        g.inputs.set(g.in_full.mask, all_mask);
    }

    std::vector<lattice> read_lattices(draft_graph & g, const std::vector<draft_job> & jobs) const {
        const size_t K = hp().selector_top_k;
        const size_t D = g.shape().n_draft;

        std::vector<token_id> cand(ggml_nelements(g.out_cand));
        std::vector<float>    first(ggml_nelements(g.out_score_first));
        std::vector<float>    rest(g.out_score ? ggml_nelements(g.out_score) : 0);
        g.read(g.out_cand, cand.data());
        g.read(g.out_score_first, first.data());
        if (g.out_score) {
            g.read(g.out_score, rest.data());
        }
        g.wait();
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
    const bool plan_only = model->get().plan_only;
    if (!plan_only || shared.output) {
        check_shared(model->get(), shared);
    }
    impl_ = std::make_unique<impl>(std::move(model), shared, params);
    if (plan_only) {
        return;
    }
    impl_->graph(impl_->round_shape(1, max_draft()));  // refuses here, not in the first round
    impl_->warm_up();
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
    const int32_t n_piece = d.stage.n_prompt();
    for (int32_t done = 0; done < f.n_rows;) {
        const int32_t n_left = f.n_rows - done;
        if (c.n_staged() == 0 && n_left >= n_piece) {
            d.stage.put(d.device(), f, done, n_piece, d.stage.prompt_row());
            c.end += n_piece;
            d.start_inject(seq, d.stage.prompt_row(), n_piece, n_piece);
            done += n_piece;
            continue;
        }
        const int32_t n = std::min(n_left, feature_stage::N_STAGED - c.n_staged());
        d.stage.put(d.device(), f, done, n, d.stage.row(seq) + c.n_staged());
        c.end += n;
        done += n;
        if (c.n_staged() == feature_stage::N_STAGED) {
            d.flush(seq);
        }
    }
}

void graph_drafter::catch_up(int32_t seq) {
    if (impl_->context(seq, "catch_up").n_staged() > impl_->hp().block_size) {
        impl_->flush(seq);
    }
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
        catch_up(job.seq);
        n_seq = std::max(n_seq, job.seq + 1);
    }

    draft_graph &    g = d.graph(d.round_shape(n_seq, n_draft));
    impl::row_inputs in;
    for (int32_t seq = 0; seq < n_seq; ++seq) {  // of idle ones too, if they fit
        d.add_rows(in, seq, d.stage.row(seq), d.n_riding(seq), g.shape().n_rows / n_seq);
    }
    d.set_rows(g, in);
    d.set_blocks(g, jobs);
    g.compute();
    d.n_passes++;
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
    return impl_->graph(n_draft ? impl_->round_shape(seqs, n_draft) : inject_shape(feature_stage::N_STAGED)).ops();
}

graph_counts graph_drafter::counts() const {
    return {impl_->n_built, impl_->n_passes};
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

std::vector<memory_use> graph_drafter::memory() const {
    const draft_model::impl & m      = impl_->model->get();
    const std::string         device = ggml_backend_dev_name(m.device);
    std::vector<memory_use>   uses   = {
        {"draft weights", device, m.weights.size_bytes()},
        {"draft embedding", "CPU", m.weights.embedding.buffer.size_bytes()},
        {"draft K/V", device, impl_->cache.size_bytes()},
        {"hidden states", device, impl_->stage.size_bytes()},
    };
    for (const memory_use & g : impl_->graph_memory()) {
        add_use(uses, g);
    }
    return uses;
}

}  // namespace dflash2

#include "ggml_dflash2/graph-drafter.h"

#include <algorithm>
#include <utility>

#include "draft/backends.h"
#include "draft/draft-cache.h"
#include "draft/draft-context.h"
#include "draft/draft-model-impl.h"
#include "draft/feature-stage.h"
#include "draft/graph-io.h"
#include "draft/graph-memory.h"
#include "draft/graph-shapes.h"
#include "draft/graph-store.h"
#include "draft/graph-warm-up.h"
#include "ggml.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

static constexpr int32_t MAX_CTX = 1 << 30;  // keeps positions and cells inside int32

struct graph_drafter::impl {
    std::shared_ptr<const draft_model> model;
    shared_tensors                     shared;
    std::vector<ggml_backend_ptr>      backends;
    draft_cache                        cache;
    feature_stage                      stage;
    graph_shapes                       shapes;
    graph_store                        graphs;
    graph_io                           io;
    int32_t                            n_ctx;
    std::vector<draft_context>         contexts;  // [n_seq]
    std::weak_ptr<draft_graph>         last;      // drafted last
    std::vector<bool>                  drafted;   // [n_seq] sequences that it drafted
    int64_t                            n_passes = 0;

    impl(std::shared_ptr<const draft_model> m, const shared_tensors & s, const graph_drafter_params & p)
        : model(std::move(m)),
          shared(s),
          backends(make_backends(model->get(), s, p.n_threads)),
          cache(model->hparams(), p.n_ctx, p.n_seq, p.kv_f32 ? GGML_TYPE_F32 : GGML_TYPE_F16, model->get().device,
                plan_only()),
          stage(model->hparams(), p.n_seq, model->get().device, plan_only()),
          shapes(model->hparams(), cache, stage, on_cpu(), p.top_k_by_groups.value_or(!on_cpu())),
          graphs(model->get(), cache, stage, head(), backends),
          io(model->hparams(), cache, stage, plan_only() ? nullptr : tok_embd()),
          n_ctx(p.n_ctx),
          contexts(p.n_seq) {}

    const draft_hparams & hp() const { return model->hparams(); }

    bool plan_only() const { return model->get().plan_only; }

    bool on_cpu() const { return is_cpu(model->get().device); }

    ggml_tensor * head() const { return model->has_head() ? model->get().weights.output : shared.output; }

    ggml_tensor * tok_embd() const { return model->has_embd() ? model->get().weights.tok_embd : shared.tok_embd; }

    draft_context & context(int32_t seq, const char * who) {
        if (seq < 0 || seq >= (int32_t) contexts.size()) {
            throw error(errc::argument, std::string(who) + ": sequence " + std::to_string(seq) + " of " +
                                            std::to_string(contexts.size()));
        }
        return contexts[seq];
    }

    graph_shape draft_shape(int32_t n_seq, int32_t n_draft) const { return shapes.draft(contexts, n_seq, n_draft); }

    std::vector<memory_use> graph_memory() {
        if (!plan_only()) {
            return graphs.memory();
        }
        const bool has_all = head() && tok_embd();
        return has_all ? plan_graphs(graphs, shapes, (int32_t) contexts.size()) : std::vector<memory_use>();
    }

    // Takes n rows of a sequence that are staged from row `staged` on, in a block of n_rows.
    row_block take(int32_t seq, int32_t staged, int32_t n, int32_t n_rows) {
        const row_block block = {seq, contexts[seq].injected, staged, n, n_rows};
        contexts[seq].inject(n);
        return block;
    }

    // Starts to inject n rows that are staged from row `staged` on.
    void start_inject(int32_t seq, int32_t staged, int32_t n, const graph_shape & shape) {
        draft_graph &   g     = *graphs.get(shape);
        const row_block block = take(seq, staged, n, g.shape().n_rows);
        g.wait();
        io.set_rows(g, {block});
        g.compute();
        n_passes++;
    }

    // Injects a sequence's staged rows.
    void flush(int32_t seq) {
        const int32_t n = contexts[seq].n_staged();
        start_inject(seq, stage.row(seq), n, shapes.inject(n));
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
            if (c.empty()) {
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
    impl_->graphs.get(impl_->draft_shape(1, max_draft()));  // refuses here, not in the first round
    if (!impl_->on_cpu()) {
        warm_up(impl_->graphs, impl_->shapes, impl_->contexts, max_draft());
    }
}

graph_drafter::~graph_drafter() = default;

bool graph_drafter::truncate(int32_t seq, int32_t n_keep) {
    return impl_->context(seq, "truncate").truncate(n_keep, impl_->hp(), impl_->cache.layout(true));
}

void graph_drafter::inject(int32_t seq, const features & f) {
    impl &          d = *impl_;
    draft_context & c = d.context(seq, "inject");
    if ((int32_t) f.tap.size() != d.hp().n_taps() || f.n_embd != d.hp().n_embd) {
        throw error(errc::argument, "inject: expected " + std::to_string(d.hp().n_taps()) + " taps of " +
                                        std::to_string(d.hp().n_embd) + " values, got " + std::to_string(f.tap.size()) +
                                        " of " + std::to_string(f.n_embd));
    }
    if (f.position < 0 || (!c.empty() && f.position != c.end)) {
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
    if (c.empty()) {
        c.restart(f.position);
    }
    ggml_backend_t device  = d.backends[0].get();
    const int32_t  n_piece = d.stage.n_prompt();
    for (int32_t done = 0; done < f.n_rows;) {
        const int32_t n_left = f.n_rows - done;
        if (c.n_staged() == 0 && n_left >= n_piece) {
            d.stage.put(device, f, done, n_piece, d.stage.prompt_row());
            c.end += n_piece;
            d.start_inject(seq, d.stage.prompt_row(), n_piece, d.shapes.inject_piece());
            done += n_piece;
            continue;
        }
        const int32_t n = std::min(n_left, feature_stage::N_STAGED - c.n_staged());
        d.stage.put(device, f, done, n, d.stage.row(seq) + c.n_staged());
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

    const std::shared_ptr<draft_graph> g = d.graphs.get(d.draft_shape(n_seq, n_draft));
    std::vector<row_block>             rows;
    for (int32_t seq = 0; seq < n_seq; ++seq) {  // of idle ones too, if they fit
        const int32_t n = d.shapes.n_riding(d.contexts[seq]);
        rows.push_back(d.take(seq, d.stage.row(seq), n, g->shape().n_rows / n_seq));
    }
    d.io.set_rows(*g, rows);
    d.io.set_blocks(*g, d.contexts, jobs);
    g->compute();
    d.n_passes++;
    d.last = g;
    d.drafted.assign(d.contexts.size(), false);
    for (const draft_job & job : jobs) {
        d.drafted[job.seq] = true;
    }
    return d.io.read(*g, jobs);
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
    const std::shared_ptr<draft_graph> last = impl_->last.lock();
    if (!last || seq < 0 || seq >= n_seq() || !impl_->drafted[seq]) {
        throw error(errc::argument, "last_hidden: sequence " + std::to_string(seq) + " was not drafted last");
    }
    const ggml_tensor * t = last->out_hidden;
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
    const graph_shape shape =
        n_draft ? impl_->draft_shape(seqs, n_draft) : impl_->shapes.inject(feature_stage::N_STAGED);
    return impl_->graphs.get(shape)->ops();
}

graph_counts graph_drafter::counts() const {
    return {impl_->graphs.n_built(), impl_->n_passes};
}

void graph_drafter::watch(const std::vector<std::string> & names) {
    impl_->graphs.watch(names);
}

const std::map<std::string, watched_node> & graph_drafter::watched() const {
    return impl_->graphs.watched();
}

int32_t graph_drafter::n_embd() const {
    return impl_->hp().n_embd;
}

size_t graph_drafter::cache_bytes() const {
    return impl_->cache.size_bytes();
}

std::vector<memory_use> graph_drafter::memory() const {
    impl &                    d      = *impl_;
    const draft_model::impl & m      = d.model->get();
    const std::string         device = ggml_backend_dev_name(m.device);
    std::vector<memory_use>   uses   = {
        {"draft weights", device, m.weights.size_bytes()},
        {"draft embedding", "CPU", m.weights.embedding.buffer.size_bytes()},
        {"draft K/V", device, d.cache.size_bytes()},
        {"hidden states", device, d.stage.size_bytes()},
    };
    for (const memory_use & use : d.graph_memory()) {
        add_use(uses, use);
    }
    return uses;
}

}  // namespace dflash2

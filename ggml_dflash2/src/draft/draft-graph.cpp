#include "draft/draft-graph.h"

#include <array>
#include <cmath>

#include "draft/backends.h"
#include "draft/buffer-type.h"
#include "draft/draft-conv.h"
#include "draft/graph-ops.h"
#include "draft/top-k.h"
#include "ggml.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

// ggml-cuda multiplies up to 8 rows by vectors, more of them on tensor cores.
constexpr int64_t PADDED_ROWS = 9, FEWEST_PADDED = 6;
constexpr int64_t LARGE = 1 << 24;  // weights of a matrix

// Shapes: R injected rows, S sequences, D = n_draft, B = D + 1 tokens of a block, K = top_k. ggml order, ne[0] first.
struct draft_graph::builder {
    draft_graph &         g;
    const draft_hparams & hp;
    const draft_weights & w;
    const draft_cache &   cache;
    const feature_stage & stage;
    ggml_tensor *         head;
    ggml_context *        ctx;

    int64_t n_block() const { return g.shape_.n_draft + 1; }

    int64_t n_seq() const { return g.shape_.n_seq; }

    ggml_tensor * input(ggml_type type, const std::array<int64_t, 4> & ne, const char * name) {
        return g.inputs.add(ctx, type, ne, name);
    }

    ggml_tensor * output(ggml_tensor * t, const char * name) {
        ggml_set_name(t, name);
        ggml_set_output(t);
        ggml_build_forward_expand(g.graph_, t);
        return t;
    }

    ggml_tensor * rms_norm(ggml_tensor * x, ggml_tensor * weight) {
        return ggml_mul(ctx, ggml_rms_norm(ctx, x, hp.rms_eps), weight);
    }

    // x: [head_dim, n_head, n_tok]. Degenerate M-RoPE sections [n_rot/2, 0, 0, 0] equal this rotation on text
    // positions.
    ggml_tensor * rope(ggml_tensor * x, ggml_tensor * pos) {
        return ggml_rope_ext(ctx, x, pos, nullptr, hp.n_rot, GGML_ROPE_TYPE_NEOX, 0, hp.rope_freq_base, 1.0f, 0.0f,
                             1.0f, 0.0f, 0.0f);
    }

    // x [n, n_rows] as it best meets matrices like m; first_rows() undoes it.
    ggml_tensor * pad_rows(ggml_tensor * m, ggml_tensor * x) {
        const int64_t n     = x->ne[1];
        int64_t       n_pad = 0;
        if (is_repacked(m)) {
            n_pad = n % 4 >= 2 ? 4 - n % 4 : 0;  // four rows cost less than two
        } else if (g.shape_.pad && ggml_is_quantized(m->type) && ggml_nelements(m) >= LARGE && n >= FEWEST_PADDED &&
                   n < PADDED_ROWS) {
            n_pad = PADDED_ROWS - n;
        }
        return n_pad > 0 ? ggml_pad(ctx, x, 0, (int) n_pad, 0, 0) : x;
    }

    ggml_tensor * first_rows(ggml_tensor * x, int64_t n) {
        return x->ne[1] == n ? x : ggml_view_2d(ctx, x, x->ne[0], n, x->nb[1], 0);
    }

    // m x for x [n, n_rows].
    ggml_tensor * mul(ggml_tensor * m, ggml_tensor * x) {
        return first_rows(ggml_mul_mat(ctx, m, pad_rows(m, x)), x->ne[1]);
    }

    ring_inputs & ring(int32_t il) { return hp.is_sliding[il] ? g.in_sliding : g.in_full; }

    int64_t n_kv(int32_t il) const { return hp.is_sliding[il] ? g.shape_.n_kv_sliding : g.shape_.n_kv_full; }

    // K of x [n_embd, n]: projected, normed per head, rotated. Returns [head_dim * n_head_kv, n].
    ggml_tensor * key(const layer_weights & l, ggml_tensor * x, ggml_tensor * pos) {
        const int64_t n = x->ne[1];
        ggml_tensor * k = ggml_reshape_3d(ctx, mul(l.wk, x), hp.head_dim, hp.n_head_kv, n);
        k               = rope(rms_norm(k, l.k_norm), pos);
        return ggml_reshape_2d(ctx, k, (int64_t) hp.head_dim * hp.n_head_kv, n);
    }

    // Writes K and V of the injected rows; returns the caches after the write, for the block's attention to depend on.
    void inject(std::vector<ggml_tensor *> & k_cache, std::vector<ggml_tensor *> & v_cache) {
        const int64_t R = g.shape_.n_rows;
        g.in_staged     = input(GGML_TYPE_I32, {R, 1, 1, 1}, "staged");
        g.in_row_pos    = input(GGML_TYPE_I32, {R, 1, 1, 1}, "row_pos");

        ggml_tensor * features = ggml_get_rows(ctx, stage.rows(), g.in_staged);  // [n_taps * n_embd, R]
        ggml_tensor * fused    = mul(w.fc, features);                            // [n_embd, R]
        ggml_set_name(fused, "fc_out");
        fused = rms_norm(fused, w.hidden_norm);
        ggml_set_name(fused, "fused");
        for (int32_t il = 0; il < hp.n_layer; ++il) {
            const layer_weights & l = w.layers[il];
            if (!ring(il).rows) {
                ring(il).rows = input(GGML_TYPE_I64, {R, 1, 1, 1}, hp.is_sliding[il] ? "rows_sliding" : "rows_full");
            }
            k_cache[il] = ggml_set_rows(ctx, k_cache[il], key(l, fused, g.in_row_pos), ring(il).rows);
            v_cache[il] = ggml_set_rows(ctx, v_cache[il], mul(l.wv, fused), ring(il).rows);
            ggml_build_forward_expand(g.graph_, k_cache[il]);
            ggml_build_forward_expand(g.graph_, v_cache[il]);
        }
    }

    // First n_kv cells of every sequence as heads: [head_dim, n_kv, n_head_kv, S].
    ggml_tensor * heads(int32_t il, ggml_tensor * cells) {
        const size_t seq_stride = cells->nb[1] * (size_t) cache.layout(hp.is_sliding[il] != 0).n_cells;
        return ggml_view_4d(ctx, cells, hp.head_dim, n_kv(il), hp.n_head_kv, n_seq(), cells->nb[1],
                            ggml_row_size(cells->type, hp.head_dim), seq_stride, 0);
    }

    // x: [n_embd, B, S], normed and convolved. A token sees its sequence's context in its window and its own block.
    ggml_tensor * attention(int32_t il, ggml_tensor * x, ggml_tensor * k_cells, ggml_tensor * v_cells) {
        const layer_weights & l = w.layers[il];
        const int64_t         B = n_block();
        const int64_t         S = n_seq();
        if (!ring(il).mask) {
            const bool slides = hp.is_sliding[il] != 0;
            ring(il).block    = input(GGML_TYPE_I64, {B * S, 1, 1, 1}, slides ? "block_sliding" : "block_full");
            ring(il).mask     = input(GGML_TYPE_F16, {n_kv(il), B, 1, S}, slides ? "mask_sliding" : "mask_full");
        }

        x               = ggml_reshape_2d(ctx, x, hp.n_embd, B * S);
        ggml_tensor * q = ggml_reshape_3d(ctx, mul(l.wq, x), hp.head_dim, hp.n_head, B * S);
        q               = rope(rms_norm(q, l.q_norm), g.in_pos);
        q               = ggml_permute(ctx, ggml_reshape_4d(ctx, q, hp.head_dim, hp.n_head, B, S), 0, 2, 1, 3);
        k_cells         = ggml_set_rows(ctx, k_cells, key(l, x, g.in_pos), ring(il).block);
        v_cells         = ggml_set_rows(ctx, v_cells, mul(l.wv, x), ring(il).block);

        ggml_tensor * cur = ggml_flash_attn_ext(ctx, q, heads(il, k_cells), heads(il, v_cells), ring(il).mask,
                                                1.0f / std::sqrt((float) hp.head_dim), 0, 0);
        ggml_prec_set_acc(cur, GGML_PREC_F32);
        cur = ggml_reshape_2d(ctx, cur, (int64_t) hp.head_dim * hp.n_head, B * S);
        return ggml_reshape_3d(ctx, mul(l.wo, cur), hp.n_embd, B, S);
    }

    ggml_tensor * ffn(int32_t il, ggml_tensor * x) {
        const layer_weights & l = w.layers[il];
        const int64_t         n = n_block() * n_seq();

        x               = pad_rows(l.gate, ggml_reshape_2d(ctx, x, hp.n_embd, n));
        ggml_tensor * h = ggml_swiglu_split(ctx, ggml_mul_mat(ctx, l.gate, x), ggml_mul_mat(ctx, l.up, x));
        return ggml_reshape_3d(ctx, first_rows(ggml_mul_mat(ctx, l.down, h), n), hp.n_embd, n_block(), n_seq());
    }

    // Runs a sublayer between its two convolutions. Both sides take their coefficients from the un-convolved input.
    template <typename Sublayer>
    ggml_tensor * convolved(ggml_tensor * x, const conv_weights & conv, Sublayer sublayer) {
        const conv_shape shape = {hp.conv_kernel_size, hp.conv_group_size};
        ggml_tensor *    flat  = ggml_reshape_2d(ctx, x, hp.n_embd, n_block() * n_seq());
        ggml_tensor *    proj  = mul(conv.proj, flat);
        ggml_tensor *    coeff =
            build_conv_coefficients(ctx, conv.base, ggml_reshape_3d(ctx, proj, proj->ne[0], n_block(), n_seq()), shape);
        return build_conv(ctx, sublayer(build_conv(ctx, x, coeff, conv_side::before)), coeff, conv_side::after);
    }

    // Returns the final hidden states of the drafted positions, [n_embd, D, S].
    ggml_tensor * block(const std::vector<ggml_tensor *> & k_cache, const std::vector<ggml_tensor *> & v_cache) {
        const int64_t B = n_block();
        const int64_t S = n_seq();
        g.in_embd       = input(GGML_TYPE_F32, {hp.n_embd, B * S, 1, 1}, "embd");
        g.in_pos        = input(GGML_TYPE_I32, {B * S, 1, 1, 1}, "pos");

        ggml_tensor * x = ggml_reshape_3d(ctx, g.in_embd, hp.n_embd, B, S);
        if (hp.embedding_scale != 1.0f) {
            x = ggml_scale(ctx, x, hp.embedding_scale);
        }
        for (int32_t il = 0; il < hp.n_layer; ++il) {
            const layer_weights & l = w.layers[il];

            ggml_tensor * cur = convolved(rms_norm(x, l.attn_norm), l.attn_conv,
                                          [&](ggml_tensor * t) { return attention(il, t, k_cache[il], v_cache[il]); });
            x                 = ggml_add(ctx, x, cur);
            ggml_format_name(x, "attn_out-%d", il);
            cur = convolved(rms_norm(x, l.ffn_norm), l.ffn_conv, [&](ggml_tensor * t) { return ffn(il, t); });
            x   = ggml_add(ctx, x, cur);
            ggml_format_name(x, "layer_out-%d", il);
        }
        // The anchor's own row predicts nothing.
        x = ggml_view_3d(ctx, x, hp.n_embd, B - 1, S, x->nb[1], x->nb[2], x->nb[1]);
        return rms_norm(x, w.output_norm);
    }

    // The head's best rows for hidden [n_embd, n], with their logits.
    top_rows candidates(ggml_tensor * hidden) {
        ggml_tensor * logits = mul(head, hidden);  // [n_head_out, n]
        if (hp.logit_scale != 1.0f) {
            logits = ggml_scale(ctx, logits, hp.logit_scale);
        }
        const auto build = g.shape_.groups ? build_top_k_by_groups : build_top_k;
        top_rows   top   = build(ctx, logits, hp.selector_top_k);
        if (hp.logit_softcap > 0.0f) {  // monotonic: it does not change which are best
            top.value = ggml_tanh(ctx, ggml_scale(ctx, top.value, 1.0f / hp.logit_softcap));
            top.value = ggml_scale(ctx, top.value, hp.logit_softcap);
        }
        return top;
    }

    // score(to | from) = logit(to) + <A[from] * (W h), B[to]> with A, B the selector's tables and h the hidden state at
    // the position of `to` (dflash 0.1.0, CandidateSelector). hidden: [n_embd, D, S].
    void lattice(ggml_tensor * hidden) {
        const int64_t K = hp.selector_top_k;
        const int64_t r = hp.selector_rank;
        const int64_t D = g.shape_.n_draft;
        const int64_t S = n_seq();
        hidden          = ggml_reshape_2d(ctx, hidden, hp.n_embd, D * S);

        const top_rows top   = candidates(hidden);
        ggml_tensor *  unary = ggml_reshape_4d(ctx, top.value, K, 1, D, S);
        ggml_tensor *  cand  = top.id;
        if (w.d2t) {
            cand = ggml_get_rows(ctx, w.d2t, ggml_reshape_1d(ctx, cand, K * D * S));
        }
        g.out_cand = output(ggml_reshape_3d(ctx, cand, K, D, S), "cand");

        ggml_tensor * gate = ggml_reshape_4d(ctx, mul(w.sel_hidden, hidden), r, 1, D, S);
        ggml_tensor * succ = ggml_get_rows(ctx, w.sel_succ, ggml_reshape_1d(ctx, g.out_cand, K * D * S));
        succ               = ggml_reshape_4d(ctx, succ, r, K, D, S);

        // Positions first .. first + n - 1 of a tensor [ne0, ne1, D, S].
        const auto at = [&](ggml_tensor * t, int64_t first, int64_t n) {
            return ggml_view_4d(ctx, t, t->ne[0], t->ne[1], n, S, t->nb[1], t->nb[2], t->nb[3], first * t->nb[2]);
        };
        // from: [r, n_from, n, S] predecessor rows of positions first .. first + n - 1; returns [K, n_from, n, S].
        const auto scores = [&](ggml_tensor * from, int64_t first, int64_t n) {
            from = ggml_mul(ctx, from, at(gate, first, n));
            return ggml_add(ctx, ggml_mul_mat(ctx, at(succ, first, n), from), at(unary, first, n));
        };

        // Position 0: the predecessor is the anchor.
        g.in_anchors         = input(GGML_TYPE_I32, {S, 1, 1, 1}, "anchors");
        ggml_tensor * anchor = ggml_reshape_4d(ctx, ggml_get_rows(ctx, w.sel_pred, g.in_anchors), r, 1, 1, S);
        g.out_score_first    = output(scores(anchor, 0, 1), "score_first");
        if (D == 1) {
            return;
        }

        // Position i > 0: the predecessors are the candidates of position i - 1.
        ggml_tensor * before =
            ggml_cont(ctx, ggml_view_3d(ctx, g.out_cand, K, D - 1, S, g.out_cand->nb[1], g.out_cand->nb[2], 0));
        ggml_tensor * from = ggml_get_rows(ctx, w.sel_pred, ggml_reshape_1d(ctx, before, K * (D - 1) * S));
        g.out_score        = output(scores(ggml_reshape_4d(ctx, from, r, K, D - 1, S), 1, D - 1), "score");
    }
};

draft_graph::draft_graph(const draft_model::impl & model, const draft_cache & cache, const feature_stage & stage,
                         ggml_tensor * head, const std::vector<ggml_backend_t> & backends, const graph_shape & shape)
    : shape_(shape), device_(backends[0]) {
    const draft_hparams & hp      = model.hp;
    const size_t          n_nodes = (size_t) hp.n_layer * (96 + 36 * hp.conv_kernel_size) + 192;
    ctx_.reset(ggml_init({n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false), nullptr,
                          /*no_alloc =*/true}));
    if (!ctx_) {
        throw error(errc::memory, "draft graph: cannot allocate its nodes");
    }
    graph_ = ggml_new_graph_custom(ctx_.get(), n_nodes, false);
    builder b{*this, hp, model.weights, cache, stage, head, ctx_.get()};

    std::vector<ggml_tensor *> k_cache, v_cache;
    for (int32_t il = 0; il < hp.n_layer; ++il) {
        k_cache.push_back(cache.k(il));
        v_cache.push_back(cache.v(il));
    }
    b.inject(k_cache, v_cache);
    if (shape.n_draft > 0) {
        out_hidden = b.output(b.block(k_cache, v_cache), "hidden");
        b.lattice(out_hidden);
    }
    inputs.place(ggml_backend_get_device(device_), model.plan_only);
    check_ops(graph_, backends);

    std::vector<ggml_backend_t> order = backends;
    sched_.reset(ggml_backend_sched_new(order.data(), nullptr, (int) order.size(), n_nodes, false, false));
    if (!sched_) {
        throw error(errc::memory, "draft graph: cannot allocate its scheduler");
    }
    std::vector<size_t> sizes(order.size());
    if (model.plan_only) {
        ggml_backend_sched_reserve_size(sched_.get(), graph_, sizes.data());
    } else if (!ggml_backend_sched_alloc_graph(sched_.get(), graph_)) {
        throw error(errc::memory, "draft graph: cannot allocate its compute buffer; lower n_ctx or n_parallel");
    }
    for (size_t i = 0; i < order.size(); ++i) {
        const char * name = ggml_backend_dev_name(ggml_backend_get_device(order[i]));
        const size_t size = model.plan_only ? sizes[i] : ggml_backend_sched_get_buffer_size(sched_.get(), order[i]);
        memory_.push_back({"draft graphs", name, size + (i == 0 ? inputs.size_bytes() : 0)});
    }
    memory_.back().bytes += inputs.size_bytes();  // the host's copy; the CPU is last
}

std::vector<graph_op> draft_graph::ops() const {
    std::vector<graph_op> out;
    for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
        if (const ggml_tensor * node = ggml_graph_node(graph_, i); is_computed(node)) {
            out.push_back(describe(node));
        }
    }
    return out;
}

void draft_graph::watch(node_watch * w) {
    ggml_backend_sched_set_eval_callback(sched_.get(), w ? node_watch::callback : nullptr, w);
}

void draft_graph::compute() {
    inputs.send(device_);
    const ggml_status status = ggml_backend_sched_graph_compute_async(sched_.get(), graph_);
    if (status != GGML_STATUS_SUCCESS) {
        throw error(errc::decode, std::string("draft graph: ") + ggml_status_to_string(status));
    }
}

void draft_graph::read(const ggml_tensor * output, void * data) const {
    ggml_backend_t backend = ggml_backend_sched_get_tensor_backend(sched_.get(), const_cast<ggml_tensor *>(output));
    ggml_backend_tensor_get_async(backend, output, data, 0, ggml_nbytes(output));
}

void draft_graph::wait() {
    ggml_backend_sched_synchronize(sched_.get());
}

}  // namespace dflash2

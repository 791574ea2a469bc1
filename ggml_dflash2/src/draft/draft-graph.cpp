#include "draft/draft-graph.h"

#include <cmath>

#include "draft/draft-conv.h"
#include "ggml.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

// Shapes: R injected rows, B = n_draft + 1 tokens of the block, K = top_k. ggml order, ne[0] first.
struct draft_graph::builder {
    draft_graph &         g;
    const draft_hparams & hp;
    const draft_weights & w;
    const draft_cache &   cache;
    ggml_tensor *         tok_embd;
    ggml_tensor *         head;
    ggml_context *        ctx;

    int64_t n_block() const { return g.shape_.n_draft + 1; }

    ggml_tensor * input(ggml_type type, int64_t ne0, int64_t ne1, const char * name) {
        ggml_tensor * t = ggml_new_tensor_2d(ctx, type, ne0, ne1);
        ggml_set_name(t, name);
        ggml_set_input(t);
        return t;
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

    ring_inputs & ring(int32_t il) { return hp.is_sliding[il] ? g.in_sliding : g.in_full; }

    int64_t n_kv(int32_t il) const { return hp.is_sliding[il] ? g.shape_.n_kv_sliding : g.shape_.n_kv_full; }

    // K of x [n_embd, n]: projected, normed per head, rotated. Returns [head_dim * n_head_kv, n].
    ggml_tensor * key(const layer_weights & l, ggml_tensor * x, ggml_tensor * pos) {
        const int64_t n = x->ne[1];
        ggml_tensor * k = ggml_reshape_3d(ctx, ggml_mul_mat(ctx, l.wk, x), hp.head_dim, hp.n_head_kv, n);
        k               = rope(rms_norm(k, l.k_norm), pos);
        return ggml_reshape_2d(ctx, k, (int64_t) hp.head_dim * hp.n_head_kv, n);
    }

    // Writes K and V of the injected rows; returns the caches after the write, for the block's attention to depend on.
    void inject(std::vector<ggml_tensor *> & k_cache, std::vector<ggml_tensor *> & v_cache) {
        const int64_t R = g.shape_.n_rows;
        g.in_features   = input(GGML_TYPE_F32, (int64_t) hp.n_taps() * hp.n_embd, R, "features");
        g.in_row_pos    = input(GGML_TYPE_I32, R, 1, "row_pos");

        ggml_tensor * fused = ggml_mul_mat(ctx, w.fc, g.in_features);  // [n_embd, R]
        ggml_set_name(fused, "fc_out");
        fused = rms_norm(fused, w.hidden_norm);
        for (int32_t il = 0; il < hp.n_layer; ++il) {
            const layer_weights & l = w.layers[il];
            if (!ring(il).rows) {
                ring(il).rows = input(GGML_TYPE_I64, R, 1, hp.is_sliding[il] ? "rows_sliding" : "rows_full");
            }
            k_cache[il] = ggml_set_rows(ctx, k_cache[il], key(l, fused, g.in_row_pos), ring(il).rows);
            v_cache[il] = ggml_set_rows(ctx, v_cache[il], ggml_mul_mat(ctx, l.wv, fused), ring(il).rows);
            ggml_build_forward_expand(g.graph_, k_cache[il]);
            ggml_build_forward_expand(g.graph_, v_cache[il]);
        }
    }

    // First n_kv cells of a cache as heads: [head_dim, n_kv, n_head_kv].
    ggml_tensor * heads(ggml_tensor * cells, int64_t n_kv) {
        return ggml_view_3d(ctx, cells, hp.head_dim, n_kv, hp.n_head_kv, cells->nb[1],
                            ggml_row_size(cells->type, hp.head_dim), 0);
    }

    // x: [n_embd, B], normed and convolved. Every token of the block sees the context in its window and the block.
    ggml_tensor * attention(int32_t il, ggml_tensor * x, ggml_tensor * k_cells, ggml_tensor * v_cells) {
        const layer_weights & l = w.layers[il];
        const int64_t         B = n_block();
        if (!ring(il).mask) {
            ring(il).mask = input(GGML_TYPE_F16, n_kv(il), B, hp.is_sliding[il] ? "mask_sliding" : "mask_full");
        }

        ggml_tensor * q = ggml_reshape_3d(ctx, ggml_mul_mat(ctx, l.wq, x), hp.head_dim, hp.n_head, B);
        q               = rope(rms_norm(q, l.q_norm), g.in_pos);
        k_cells         = ggml_set_rows(ctx, k_cells, key(l, x, g.in_pos), g.in_cells);
        v_cells         = ggml_set_rows(ctx, v_cells, ggml_mul_mat(ctx, l.wv, x), g.in_cells);

        ggml_tensor * cur =
            ggml_flash_attn_ext(ctx, ggml_permute(ctx, q, 0, 2, 1, 3), heads(k_cells, n_kv(il)),
                                heads(v_cells, n_kv(il)), ring(il).mask, 1.0f / std::sqrt((float) hp.head_dim), 0, 0);
        ggml_prec_set_acc(cur, GGML_PREC_F32);
        cur = ggml_reshape_2d(ctx, cur, (int64_t) hp.head_dim * hp.n_head, B);
        return ggml_mul_mat(ctx, l.wo, cur);  // [n_embd, B]
    }

    ggml_tensor * ffn(int32_t il, ggml_tensor * x) {
        const layer_weights & l = w.layers[il];
        ggml_tensor *         h = ggml_swiglu_split(ctx, ggml_mul_mat(ctx, l.gate, x), ggml_mul_mat(ctx, l.up, x));
        return ggml_mul_mat(ctx, l.down, h);  // [n_embd, B]
    }

    // Runs a sublayer between its two convolutions. Both sides take their coefficients from the un-convolved input.
    template <typename Sublayer>
    ggml_tensor * convolved(ggml_tensor * x, const conv_weights & conv, Sublayer sublayer) {
        const conv_shape shape = {hp.conv_kernel_size, hp.conv_group_size};
        ggml_tensor *    coeff = ggml_mul_mat(ctx, conv.proj, x);  // [n_embd / group * kernel * 2, B]
        ggml_tensor *    inner = build_conv(ctx, x, coeff, conv.base, shape, conv_side::before);
        return build_conv(ctx, sublayer(inner), coeff, conv.base, shape, conv_side::after);
    }

    // Returns the final hidden states of the drafted positions, [n_embd, n_draft].
    ggml_tensor * block(const std::vector<ggml_tensor *> & k_cache, const std::vector<ggml_tensor *> & v_cache) {
        const int64_t B = n_block();
        g.in_tokens     = input(GGML_TYPE_I32, B, 1, "tokens");
        g.in_pos        = input(GGML_TYPE_I32, B, 1, "pos");
        g.in_cells      = input(GGML_TYPE_I64, B, 1, "cells");

        ggml_tensor * x = ggml_get_rows(ctx, tok_embd, g.in_tokens);  // [n_embd, B]
        if (hp.embedding_scale != 1.0f) {
            x = ggml_scale(ctx, x, hp.embedding_scale);
        }
        for (int32_t il = 0; il < hp.n_layer; ++il) {
            const layer_weights & l = w.layers[il];

            ggml_tensor * cur = convolved(rms_norm(x, l.attn_norm), l.attn_conv,
                                          [&](ggml_tensor * t) { return attention(il, t, k_cache[il], v_cache[il]); });
            x                 = ggml_add(ctx, x, cur);
            cur = convolved(rms_norm(x, l.ffn_norm), l.ffn_conv, [&](ggml_tensor * t) { return ffn(il, t); });
            x   = ggml_add(ctx, x, cur);
            ggml_format_name(x, "layer_out-%d", il);
        }
        x = ggml_view_2d(ctx, x, hp.n_embd, B - 1, x->nb[1], x->nb[1]);  // the anchor's own row predicts nothing
        return rms_norm(x, w.output_norm);
    }

    // [n_head_out, n_draft]
    ggml_tensor * logits(ggml_tensor * hidden) {
        ggml_tensor * cur = ggml_mul_mat(ctx, head, hidden);
        if (hp.logit_scale != 1.0f) {
            cur = ggml_scale(ctx, cur, hp.logit_scale);
        }
        if (hp.logit_softcap > 0.0f) {
            cur = ggml_scale(ctx, cur, 1.0f / hp.logit_softcap);
            cur = ggml_scale(ctx, ggml_tanh(ctx, cur), hp.logit_softcap);
        }
        return cur;
    }

    // score(to | from) = logit(to) + <A[from] * (W h), B[to]> with A, B the selector's tables and h the hidden state at
    // the position of `to` (dflash 0.1.0, CandidateSelector).
    void lattice(ggml_tensor * hidden) {
        const int64_t K = hp.selector_top_k;
        const int64_t r = hp.selector_rank;
        const int64_t D = g.shape_.n_draft;

        ggml_tensor * all   = logits(hidden);
        ggml_tensor * top   = ggml_top_k(ctx, all, (int) K);  // [K, D] rows of the head
        ggml_tensor * unary = ggml_get_rows(ctx, ggml_reshape_3d(ctx, all, 1, all->ne[0], D), top);  // [1, K, D]
        unary               = ggml_reshape_3d(ctx, unary, K, 1, D);

        ggml_tensor * cand = top;
        if (w.d2t) {
            cand = ggml_get_rows(ctx, w.d2t, ggml_reshape_1d(ctx, ggml_cont(ctx, top), K * D));
            cand = ggml_reshape_2d(ctx, cand, K, D);
        }
        g.out_cand = output(ggml_cont(ctx, cand), "cand");

        ggml_tensor * ids  = ggml_reshape_1d(ctx, g.out_cand, K * D);
        ggml_tensor * gate = ggml_mul_mat(ctx, w.sel_hidden, hidden);                             // [r, D]
        ggml_tensor * succ = ggml_reshape_3d(ctx, ggml_get_rows(ctx, w.sel_succ, ids), r, K, D);  // [r, K, D]

        // Position 0: the predecessor is the anchor.
        ggml_tensor * anchor = ggml_get_rows(ctx, w.sel_pred, ggml_view_1d(ctx, g.in_tokens, 1, 0));  // [r, 1]
        anchor               = ggml_mul(ctx, anchor, ggml_view_2d(ctx, gate, r, 1, gate->nb[1], 0));
        ggml_tensor * first  = ggml_mul_mat(ctx, ggml_view_2d(ctx, succ, r, K, succ->nb[1], 0), anchor);  // [K, 1]
        first                = ggml_add(ctx, first, ggml_view_2d(ctx, unary, K, 1, unary->nb[1], 0));
        g.out_score_first    = output(first, "score_first");
        if (D == 1) {
            return;
        }

        // Position i > 0: the predecessors are the candidates of position i - 1.
        ggml_tensor * from = ggml_get_rows(ctx, w.sel_pred, ggml_view_1d(ctx, ids, K * (D - 1), 0));
        from               = ggml_reshape_3d(ctx, from, r, K, D - 1);
        from = ggml_mul(ctx, from, ggml_view_3d(ctx, gate, r, 1, D - 1, gate->nb[1], gate->nb[1], gate->nb[1]));
        ggml_tensor * to    = ggml_view_3d(ctx, succ, r, K, D - 1, succ->nb[1], succ->nb[2], succ->nb[2]);
        ggml_tensor * score = ggml_mul_mat(ctx, to, from);  // [K (to), K (from), D - 1]
        score = ggml_add(ctx, score, ggml_view_3d(ctx, unary, K, 1, D - 1, unary->nb[1], unary->nb[2], unary->nb[2]));
        g.out_score = output(score, "score");
    }
};

draft_graph::draft_graph(const draft_model::impl & model, const draft_cache & cache, const shared_tensors & shared,
                         const std::vector<ggml_backend_t> & backends, const graph_shape & shape)
    : shape_(shape) {
    const draft_hparams & hp      = model.hp;
    const size_t          n_nodes = (size_t) hp.n_layer * (96 + 32 * hp.conv_kernel_size) + 128;
    ctx_.reset(ggml_init({n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false), nullptr,
                          /*no_alloc =*/true}));
    if (!ctx_) {
        throw error(errc::memory, "draft graph: cannot allocate its nodes");
    }
    graph_ = ggml_new_graph_custom(ctx_.get(), n_nodes, false);

    ggml_tensor * tok_embd = model.weights.tok_embd ? model.weights.tok_embd : shared.tok_embd;
    ggml_tensor * head     = model.weights.output ? model.weights.output : shared.output;
    builder       b{*this, hp, model.weights, cache, tok_embd, head, ctx_.get()};

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

    for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
        ggml_tensor * node = ggml_graph_node(graph_, i);
        bool          runs = false;
        for (ggml_backend_t backend : backends) {
            runs = runs || ggml_backend_supports_op(backend, node);
        }
        if (!runs) {
            throw error(errc::incompatible, std::string("draft graph: no available device runs ") + ggml_op_desc(node) +
                                                " on " + ggml_type_name(node->src[0]->type) + " (node " + node->name +
                                                "); convert the drafter to another type");
        }
    }

    std::vector<ggml_backend_t> order = backends;
    sched_.reset(ggml_backend_sched_new(order.data(), nullptr, (int) order.size(), n_nodes, false, false));
    if (!sched_ || !ggml_backend_sched_alloc_graph(sched_.get(), graph_)) {
        throw error(errc::memory, "draft graph: cannot allocate its compute buffer");
    }
}

void draft_graph::compute() {
    const ggml_status status = ggml_backend_sched_graph_compute(sched_.get(), graph_);
    if (status != GGML_STATUS_SUCCESS) {
        throw error(errc::decode, std::string("draft graph: ") + ggml_status_to_string(status));
    }
}

}  // namespace dflash2

#include "draft/graph-io.h"

#include <algorithm>
#include <utility>

#include "ggml.h"

namespace dflash2 {

graph_io::graph_io(const draft_hparams & hp, const draft_cache & cache, const feature_stage & stage,
                   const ggml_tensor * tok_embd)
    : hp_(hp), cache_(cache), stage_(stage), tok_embd_(tok_embd), mask_row_(hp.n_embd) {
    if (tok_embd) {
        tok_embd_.read(hp.mask_token_id, mask_row_.data());
    }
}

void graph_io::set_rows(draft_graph & g, const std::vector<row_block> & blocks) const {
    std::vector<int32_t> staged, pos;
    std::vector<int64_t> near_rows, all_rows;
    for (const row_block & b : blocks) {
        for (int32_t i = 0; i < b.n_rows; ++i) {
            staged.push_back(i < b.n ? b.staged + i : stage_.zero_row());
            pos.push_back(i < b.n ? b.position + i : 0);
        }
        cache_.layout(true).add_rows(b.seq, b.position, b.n, b.n_rows, near_rows);
        cache_.layout(false).add_rows(b.seq, b.position, b.n, b.n_rows, all_rows);
    }
    g.inputs.set(g.in_staged, staged);
    g.inputs.set(g.in_row_pos, pos);
    g.inputs.set(g.in_sliding.rows, near_rows);
    g.inputs.set(g.in_full.rows, all_rows);
}

void graph_io::set_blocks(draft_graph & g, const std::vector<draft_context> & contexts,
                          const std::vector<draft_job> & jobs) {
    const graph_shape &  shape = g.shape();
    const int32_t        B     = shape.n_draft + 1;
    const ring_layout &  near  = cache_.layout(true);
    const ring_layout &  all   = cache_.layout(false);
    std::vector<int32_t> anchors(shape.n_seq, hp_.mask_token_id);
    float *              embd = g.inputs.data<float>(g.in_embd);
    for (int32_t i = 0; i < B * shape.n_seq; ++i) {
        std::copy(mask_row_.begin(), mask_row_.end(), embd + (size_t) i * hp_.n_embd);
    }
    for (const draft_job & job : jobs) {
        anchors[job.seq] = job.anchor;
        tok_embd_.read(job.anchor, embd + (size_t) job.seq * B * hp_.n_embd);
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
            near.add_mask(c.begin, c.end, shape.n_kv_sliding, B, hp_.causal, near_mask);
        }
        if (g.in_full.mask) {
            all.add_mask(c.begin, c.end, shape.n_kv_full, B, hp_.causal, all_mask);
        }
    }
    g.inputs.set(g.in_anchors, anchors);
    g.inputs.set(g.in_pos, pos);
    g.inputs.set(g.in_sliding.block, near_rows);
    g.inputs.set(g.in_full.block, all_rows);
    g.inputs.set(g.in_sliding.mask, near_mask);
    g.inputs.set(g.in_full.mask, all_mask);
}

std::vector<lattice> graph_io::read(draft_graph & g, const std::vector<draft_job> & jobs) const {
    const size_t K = hp_.selector_top_k;
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

}  // namespace dflash2

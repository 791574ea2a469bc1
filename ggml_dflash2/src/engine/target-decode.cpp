// Decoding, the rows of the last decode, and roll-back.
#include <algorithm>

#include "engine/llama-ext-shim.h"
#include "engine/taps.h"
#include "engine/target-impl.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

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
    if (n_logits > impl::MAX_DRAFT_ROWS * n_seq()) {
        throw error(errc::argument, "decode: at most " + std::to_string(impl::MAX_DRAFT_ROWS * n_seq()) +
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

void target::decode(const std::vector<token_id> & tokens, int32_t position, int32_t seq, bool all_logits) {
    std::vector<target_row> rows;
    for (const token_id id : tokens) {
        const bool last = rows.size() + 1 == tokens.size();
        rows.push_back({id, seq, position + (int32_t) rows.size(), all_logits || last});
    }
    if (seq >= 0 && seq < n_seq()) {  // others are refused below
        set_row_cut(seq, 0);
    }
    decode(rows);
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

}  // namespace dflash2

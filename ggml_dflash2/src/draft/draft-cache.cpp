#include "draft/draft-cache.h"

#include <algorithm>

namespace dflash2 {

namespace {

constexpr uint16_t F16_ZERO    = 0x0000;
constexpr uint16_t F16_NEG_INF = 0xFC00;

int32_t round_up(int64_t n, int64_t step) {
    return (int32_t) ((n + step - 1) / step * step);
}

ring_layout make_layout(int32_t block, int32_t window, int32_t n_ring) {
    return {block, n_ring, window, round_up((int64_t) block + 1 + n_ring, CELL_STEP)};
}

}  // namespace

int32_t ring_layout::n_visible(int32_t begin, int32_t end) const {
    // Once the ring has wrapped, or when the context does not start at 0, any cell may be in use.
    const int32_t used = begin == 0 ? std::min(end, n_ring) : n_ring;
    return std::min(n_cells, round_up((int64_t) block + 1 + used, CELL_STEP));
}

void ring_layout::add_rows(int32_t seq, int32_t first, int32_t n_real, int32_t n_rows,
                           std::vector<int64_t> & rows) const {
    for (int32_t i = 0; i < n_rows; ++i) {
        const bool kept = i < n_real && i >= n_real - n_ring;
        rows.push_back(row(seq, kept ? cell(first + i) : trash()));
    }
}

void ring_layout::add_mask(int32_t begin, int32_t end, int32_t n_kv, int32_t n_query, bool causal,
                           std::vector<uint16_t> & mask) const {
    const size_t offset = mask.size();
    mask.resize(offset + (size_t) n_kv * n_query, F16_NEG_INF);
    for (int32_t i = 0; i < n_query; ++i) {
        uint16_t *    line  = mask.data() + offset + (size_t) i * n_kv;
        const int32_t query = end + i;
        const int32_t first = window > 0 ? std::max(begin, query - window + 1) : begin;
        for (int32_t p = first; p < end;) {
            const int32_t n = std::min(end - p, n_ring - p % n_ring);  // up to the end of the ring
            std::fill_n(line + cell(p), n, F16_ZERO);
            p += n;
        }
        for (int32_t j = 0; j < n_query; ++j) {
            const bool in_window = window == 0 || (i - j < window && j - i < window);
            if (in_window && (!causal || j <= i)) {
                line[j] = F16_ZERO;
            }
        }
    }
}

draft_cache::draft_cache(const draft_hparams & hp, int32_t n_ctx, int32_t n_seq, ggml_type type,
                         ggml_backend_dev_t device, bool plan_only) {
    // A window wider than the context is never filled.
    const int64_t wanted = (int64_t) std::max(1, hp.sliding_window - 1) + SLACK;
    sliding_             = make_layout(hp.block_size, hp.sliding_window, (int32_t) std::min<int64_t>(wanted, n_ctx));
    full_                = make_layout(hp.block_size, 0, n_ctx);

    ctx_.reset(ggml_init({(size_t) (2 * hp.n_layer + 1) * ggml_tensor_overhead(), nullptr, /*no_alloc =*/true}));
    const int64_t n_embd_kv = (int64_t) hp.head_dim * hp.n_head_kv;
    for (int32_t il = 0; il < hp.n_layer; ++il) {
        const ring_layout & l = layout(hp.is_sliding[il] != 0);
        k_.push_back(ggml_new_tensor_2d(ctx_.get(), type, n_embd_kv, (int64_t) l.n_cells * n_seq));
        v_.push_back(ggml_new_tensor_2d(ctx_.get(), type, n_embd_kv, (int64_t) l.n_cells * n_seq));
    }
    buffer_ = tensor_buffer(ctx_.get(), ggml_backend_dev_buffer_type(device), plan_only, "draft K/V");
    // Hidden cells are multiplied by zero, so they must hold finite numbers from the start.
    ggml_backend_buffer_clear(buffer_.get(), 0);
}

}  // namespace dflash2

// Draft K/V: one ring per layer, so memory and time of a draft do not grow with the target's context.
//
// Cells of a layer:  [0, block)      the block being drafted, overwritten by every round
//                    block           trash: padding rows are written here and never seen
//                    block + 1 + r   context position p with p % n_ring == r
// n_ring is window - 1 for sliding layers (the oldest position that the anchor sees) and n_ctx for full layers.
#pragma once

#include <vector>

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml_dflash2/draft-model.h"

namespace dflash2 {

// Where positions live in the cells of one kind of layer (sliding or full). Pure index arithmetic.
struct ring_layout {
    int32_t block   = 0;
    int32_t n_ring  = 0;
    int32_t window  = 0;  // 0: full
    int32_t n_cells = 0;  // allocated, a multiple of 64

    int32_t trash() const { return block; }
    int32_t cell(int32_t position) const { return block + 1 + position % n_ring; }

    // Cells that a graph has to look at when the context holds positions begin .. end - 1; grows in steps of 256.
    int32_t n_visible(int32_t begin, int32_t end) const;

    // Cells to write for positions first .. first + n_real - 1, padded to n_rows. Rows that a later one of the same
    // call would overwrite go to the trash.
    void fill_rows(int32_t first, int32_t n_real, int32_t n_rows, std::vector<int64_t> & cells) const;

    // Mask [n_visible, n_query] in F16 of a block whose anchor is at position `end`: 0 visible, -inf hidden.
    void fill_mask(int32_t begin, int32_t end, int32_t n_kv, int32_t n_query, bool causal,
                   std::vector<uint16_t> & mask) const;
};

class draft_cache {
  public:
    // Throws errc::memory.
    draft_cache(const draft_hparams & hp, int32_t n_ctx, ggml_type type, ggml_backend_dev_t device);

    const ring_layout & layout(bool sliding) const { return sliding ? sliding_ : full_; }
    ggml_tensor *       k(int32_t il) const { return k_[il]; }  // [head_dim * n_head_kv, n_cells]
    ggml_tensor *       v(int32_t il) const { return v_[il]; }  // [head_dim * n_head_kv, n_cells]
    size_t              size_bytes() const;

  private:
    ring_layout                sliding_;
    ring_layout                full_;
    std::vector<ggml_tensor *> k_;
    std::vector<ggml_tensor *> v_;
    ggml_context_ptr           ctx_;
    ggml_backend_buffer_ptr    buffer_;
};

}  // namespace dflash2

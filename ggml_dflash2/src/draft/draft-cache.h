// Draft K/V: one ring per layer and sequence, so memory and time of a draft do not grow with the target's context.
//
// Cells of one sequence in a layer:  [0, block)      the block being drafted, overwritten by every round
//                    block           trash: padding rows are written here and never seen
//                    block + 1 + r   context position p with p % n_ring == r
// n_ring is window - 1 (the oldest position that the anchor sees) + SLACK for sliding layers and n_ctx for full layers.
// With the slack a sequence can be cut back by that many positions and its next draft still sees its whole window.
#pragma once

#include <vector>

#include "draft/tensor-buffer.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml_dflash2/draft-model.h"

namespace dflash2 {

// Attention kernels of GPUs are fast on multiples of 256, and few shapes mean few graphs.
constexpr int32_t CELL_STEP = 256;

// Where positions live in the cells of one kind of layer (sliding or full). Pure index arithmetic.
struct ring_layout {
    int32_t block   = 0;
    int32_t n_ring  = 0;
    int32_t window  = 0;  // 0: full
    int32_t n_cells = 0;  // allocated per sequence, a multiple of CELL_STEP

    int32_t trash() const { return block; }
    int32_t cell(int32_t position) const { return block + 1 + position % n_ring; }

    // Cells that a graph has to look at when the context holds positions begin .. end - 1; grows in steps.
    int32_t n_visible(int32_t begin, int32_t end) const;

    // Oldest position that the cells still hold when the context began at `begin` and reached `end`.
    int32_t oldest(int32_t begin, int32_t end) const { return end - begin > n_ring ? end - n_ring : begin; }

    // Row of the layer's tensor that holds a cell of a sequence.
    int64_t row(int32_t seq, int32_t cell_index) const { return (int64_t) seq * n_cells + cell_index; }

    // Appends the rows to write for positions first .. first + n_real - 1 of a sequence, padded to n_rows. Positions
    // that a later one of the same call would overwrite go to the trash.
    void add_rows(int32_t seq, int32_t first, int32_t n_real, int32_t n_rows, std::vector<int64_t> & rows) const;

    // Appends the mask [n_kv, n_query] in F16 of a block whose anchor is at position `end`: 0 visible, -inf hidden.
    void add_mask(int32_t begin, int32_t end, int32_t n_kv, int32_t n_query, bool causal,
                  std::vector<uint16_t> & mask) const;
};

constexpr int32_t SLACK = 64;

class draft_cache {
  public:
    // Throws errc::memory.
    draft_cache(const draft_hparams & hp, int32_t n_ctx, int32_t n_seq, ggml_type type, ggml_backend_dev_t device,
                bool plan_only = false);

    const ring_layout & layout(bool sliding) const { return sliding ? sliding_ : full_; }
    ggml_tensor *       k(int32_t il) const { return k_[il]; }  // [head_dim * n_head_kv, n_cells * n_seq]
    ggml_tensor *       v(int32_t il) const { return v_[il]; }  // [head_dim * n_head_kv, n_cells * n_seq]
    size_t              size_bytes() const { return buffer_.size_bytes(); }

  private:
    ring_layout                sliding_;
    ring_layout                full_;
    std::vector<ggml_tensor *> k_;
    std::vector<ggml_tensor *> v_;
    ggml_context_ptr           ctx_;
    tensor_buffer              buffer_;
};

}  // namespace dflash2

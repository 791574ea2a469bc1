// The drafter as the engine sees it. Anything that fills a lattice can stand in for the draft graph: tests use an
// oracle and a garbage drafter.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ggml_dflash2/draft-model.h"
#include "ggml_dflash2/lattice.h"

namespace dflash2 {

// Hidden states tapped from the target, row i for position position + i.
struct features {
    std::vector<const float *> tap;  // [n_taps] pointers to [n_embd, n_rows], F32
    int32_t                    n_embd   = 0;
    int32_t                    n_rows   = 0;
    int32_t                    position = 0;  // of row 0
};

class drafter {
  public:
    virtual ~drafter() = default;

    // Forgets the context.
    virtual void reset() = 0;

    // Appends accepted rows to the context. f.position must be where the context ends, or anywhere after reset().
    // The data is copied before the call returns.
    virtual void inject(const features & f) = 0;

    // Drafts the n_draft tokens after the anchor, which stands at `position` and is not part of the context yet.
    // 1 <= n_draft <= max_draft().
    virtual lattice draft(token_id anchor, int32_t position, int32_t n_draft) = 0;

    virtual int32_t                      max_draft() const      = 0;  // block_size - 1
    virtual int32_t                      context_window() const = 0;  // positions before the anchor that matter; 0: all
    virtual const std::vector<int32_t> & target_layers() const  = 0;  // taps wanted: indices of layer inputs
};

struct graph_drafter_params {
    int32_t n_ctx     = 0;  // context of full-attention layers, in positions; sliding layers need window + block only
    int32_t n_threads = 1;  // CPU backend
    bool    kv_f32    = false;  // draft K/V in F32 instead of F16
};

// Embedding and head of the target, used where the drafter file has none. Not owned; must outlive the drafter.
struct shared_tensors {
    ggml_tensor * tok_embd = nullptr;  // [n_embd, n_vocab]
    ggml_tensor * output   = nullptr;  // [n_embd, n_vocab]
};

// The draft graph of DESIGN 4 on a ggml backend: one graph per round injects the rows accepted last, drafts the block
// and scores the lattice. Graphs are built and allocated once per shape.
class graph_drafter final : public drafter {
  public:
    // Throws error: errc::incompatible (sizes do not fit, a tensor is missing on both sides, a device lacks an op),
    // errc::argument, errc::memory. `shared` tensors belong to the target, which must outlive the drafter.
    graph_drafter(std::shared_ptr<const draft_model> model, const shared_tensors & shared,
                  const graph_drafter_params & params);
    ~graph_drafter() override;

    void                         reset() override;
    void                         inject(const features & f) override;
    lattice                      draft(token_id anchor, int32_t position, int32_t n_draft) override;
    int32_t                      max_draft() const override;
    int32_t                      context_window() const override;
    const std::vector<int32_t> & target_layers() const override;

    // Hidden states of the last draft after the final norm: [n_embd, n_draft], the anchor's row left out.
    std::vector<float> last_hidden() const;

    int32_t n_embd() const;
    size_t  cache_bytes() const;  // draft K/V

  private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

}  // namespace dflash2

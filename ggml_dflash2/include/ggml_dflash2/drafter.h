// The drafter as the engine sees it. Anything that fills a lattice can stand in for the draft graph: tests use an
// oracle and a garbage drafter.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ggml_dflash2/draft-model.h"
#include "ggml_dflash2/graph-op.h"
#include "ggml_dflash2/lattice.h"
#include "ggml_dflash2/memory.h"

namespace dflash2 {

// Hidden states tapped from the target, row i for position position + i.
struct features {
    std::vector<const float *> tap;  // [n_taps] pointers to [n_embd, n_rows], F32
    int32_t                    n_embd   = 0;
    int32_t                    n_rows   = 0;
    int32_t                    position = 0;  // of row 0
};

// One sequence of a draft pass. The anchor stands at `position`, where the sequence's context ends.
struct draft_job {
    int32_t  seq      = 0;
    token_id anchor   = -1;
    int32_t  position = 0;
};

// Sequences are numbered 0 .. n_seq - 1 and do not see each other.
class drafter {
  public:
    virtual ~drafter() = default;

    // Keeps the sequence's context before `n_keep`. False, and the context is empty, when a later draft would miss
    // positions that matter: they were overwritten, or never injected. n_keep = 0 forgets everything.
    virtual bool truncate(int32_t seq, int32_t n_keep) = 0;

    // Appends accepted rows to the context. f.position must be where the context ends, or anywhere when it is empty.
    // The data is copied before the call returns; the work on it may wait for the next draft.
    virtual void inject(int32_t seq, const features & f) = 0;

    // Does the work that inject() has put off, but for what every draft has room for. Optional: draft() does it too.
    virtual void catch_up(int32_t seq) { (void) seq; }

    // Drafts the n_draft tokens after each anchor in one pass; 1 <= n_draft <= max_draft(), sequences distinct.
    virtual std::vector<lattice> draft(const std::vector<draft_job> & jobs, int32_t n_draft) = 0;

    virtual int32_t max_draft() const      = 0;  // block_size - 1
    virtual int32_t n_seq() const          = 0;
    virtual int32_t context_window() const = 0;  // positions before the anchor worth injecting; 0: all
    virtual const std::vector<int32_t> & target_layers() const = 0;  // taps wanted: indices of layer inputs
};

struct graph_drafter_params {
    int32_t n_ctx     = 0;      // positions of a sequence; sliding layers keep their window only
    int32_t n_seq     = 1;      // sequences drafted side by side
    int32_t n_threads = 1;      // CPU backend
    bool    kv_f32    = false;  // draft K/V in F32 instead of F16

    // Finds candidates by groups instead of in one op. Empty: on accelerators, which sort wide rows for that op.
    std::optional<bool> top_k_by_groups;
};

// Embedding and head of the target, used where the drafter file has none. Not owned; must outlive the drafter.
struct shared_tensors {
    ggml_tensor * tok_embd = nullptr;  // [n_embd, n_vocab]
    ggml_tensor * output   = nullptr;  // [n_embd, n_vocab]
};

// Values of a node of the graph in its last computation; empty: not computed yet.
struct watched_node {
    std::array<int64_t, 4> ne = {};
    std::vector<float>     data;
};

// Every pass beyond a graph's first replays it: nothing is built or allocated, and CUDA graphs are launched again.
struct graph_counts {
    int64_t n_built  = 0;
    int64_t n_passes = 0;  // drafts and injections
};

// The draft graph of DESIGN 4 on a ggml backend: one graph per round injects the rows accepted last, drafts the block
// and scores the lattice. Graphs are built and allocated once per shape.
class graph_drafter final : public drafter {
  public:
    // The shared embedding must be in host memory; the shared head may be on any device, best on the model's.
    // With a model that plans only, it says what memory() it would take, and nothing else works; without the shared
    // tensors that it needs, its graphs are left out of that.
    // Throws error: errc::incompatible (sizes do not fit, a tensor is missing on both sides, the device lacks an op),
    // errc::argument, errc::memory. `shared` tensors belong to the target, which must outlive the drafter.
    graph_drafter(std::shared_ptr<const draft_model> model, const shared_tensors & shared,
                  const graph_drafter_params & params);
    ~graph_drafter() override;

    bool                         truncate(int32_t seq, int32_t n_keep) override;
    void                         inject(int32_t seq, const features & f) override;
    void                         catch_up(int32_t seq) override;
    std::vector<lattice>         draft(const std::vector<draft_job> & jobs, int32_t n_draft) override;
    int32_t                      max_draft() const override;
    int32_t                      n_seq() const override;
    int32_t                      context_window() const override;
    const std::vector<int32_t> & target_layers() const override;

    // Hidden states of a sequence's last draft after the final norm: [n_embd, n_draft], the anchor's row left out.
    std::vector<float> last_hidden(int32_t seq) const;

    // Nodes of the graph that drafts n_draft tokens of n_seq sequences now; n_draft = 0: that only injects rows.
    // Throws errc::argument.
    std::vector<graph_op> ops(int32_t n_seq, int32_t n_draft) const;

    // Copies these nodes in every later draft, which makes it slower; none: stops. Names: "fc_out", "fused" (after the
    // hidden norm), "attn_out-N", "layer_out-N" (the residual after layer N's sublayers), "hidden" (after the final
    // norm).
    void                                        watch(const std::vector<std::string> & names);
    const std::map<std::string, watched_node> & watched() const;  // valid until the next draft() or watch()

    int32_t      n_embd() const;
    size_t       cache_bytes() const;  // draft K/V
    graph_counts counts() const;

    // Weights, draft K/V, hidden states and graphs. Planned: with as many graphs as are ever kept, of the largest
    // shape.
    std::vector<memory_use> memory() const;

  private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

}  // namespace dflash2

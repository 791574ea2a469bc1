// The drafter of a file, on a ggml backend.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ggml_dflash2/draft-model.h"
#include "ggml_dflash2/drafter.h"
#include "ggml_dflash2/graph-op.h"
#include "ggml_dflash2/memory.h"

namespace dflash2 {

struct graph_drafter_params {
    int32_t n_ctx     = 0;      // positions of a sequence; sliding layers keep their window only
    int32_t n_seq     = 1;      // sequences drafted side by side
    int32_t n_threads = 1;      // CPU backend
    bool    kv_f32    = false;  // draft K/V in F32 instead of F16

    // Finds candidates by groups instead of in one op. Empty: on accelerators, which sort wide rows for that op.
    std::optional<bool> top_k_by_groups;
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

// The draft graph on a ggml backend: one graph per round injects the rows accepted last, drafts the block
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

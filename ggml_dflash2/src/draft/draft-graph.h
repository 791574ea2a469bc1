// One round of the drafter as one ggml graph of fixed shape: inject accepted rows, draft a block per sequence, score
// the lattices. Sequences are 0 .. n_seq - 1; idle ones among them compute a block that nobody reads.
#pragma once

#include <vector>

#include "draft/draft-cache.h"
#include "draft/draft-model-impl.h"
#include "draft/feature-stage.h"
#include "draft/input-pack.h"
#include "draft/node-watch.h"
#include "ggml_dflash2/graph-op.h"
#include "ggml_dflash2/memory.h"

namespace dflash2 {

struct graph_shape {
    int32_t n_seq        = 1;
    int32_t n_rows       = 0;      // injected rows of all sequences, padding included
    int32_t n_draft      = 0;      // drafted positions; 0: inject only
    int32_t n_kv_sliding = 0;      // visible cells of sliding layers
    int32_t n_kv_full    = 0;      // visible cells of full layers
    bool    groups       = false;  // candidates are found by groups, see top-k.h
    bool    pad          = false;  // 6 to 8 rows are padded to 9 where they meet large quantized matrices

    bool operator==(const graph_shape & o) const {
        return n_seq == o.n_seq && n_rows == o.n_rows && n_draft == o.n_draft && n_kv_sliding == o.n_kv_sliding &&
               n_kv_full == o.n_kv_full && groups == o.groups && pad == o.pad;
    }
};

// Per kind of layer (sliding, full). A tensor that no node uses stays null.
struct ring_inputs {
    ggml_tensor * rows  = nullptr;  // [n_rows] I64, rows of the cache for the injected rows
    ggml_tensor * block = nullptr;  // [n_block * n_seq] I64, rows of the cache for the blocks
    ggml_tensor * mask  = nullptr;  // [n_kv, n_block, 1, n_seq] F16
};

class draft_graph {
  public:
    // Builds and allocates the graph on backends[0] (the drafter's device); the head may be on the device of another.
    // head: [n_embd, n_head_out]. Of a model that plans only, it measures what it would allocate. Throws
    // errc::incompatible (names the op that the device cannot run), errc::memory.
    draft_graph(const draft_model::impl & model, const draft_cache & cache, const feature_stage & stage,
                ggml_tensor * head, const std::vector<ggml_backend_t> & backends, const graph_shape & shape);

    void compute();                                            // sends the inputs and starts. Throws errc::decode
    void read(const ggml_tensor * output, void * data) const;  // starts to copy; there after wait()
    void wait();                                               // until inputs may be written and outputs are there
    void watch(node_watch * w);                                // null: none. Must outlive the graph or be replaced

    const graph_shape &   shape() const { return shape_; }
    std::vector<graph_op> ops() const;  // in the order of computation, views left out

    // Compute buffers and inputs.
    const std::vector<memory_use> & memory() const { return memory_; }

    // Inputs. They keep their values from one compute() to the next.
    input_pack    inputs;
    ggml_tensor * in_staged  = nullptr;  // [n_rows] I32, rows of the stage to inject
    ggml_tensor * in_row_pos = nullptr;  // [n_rows] I32
    ggml_tensor * in_embd    = nullptr;  // [n_embd, n_block * n_seq] F32: anchor, mask x n_draft
    ggml_tensor * in_pos     = nullptr;  // [n_block * n_seq] I32
    ggml_tensor * in_anchors = nullptr;  // [n_seq] I32
    ring_inputs   in_sliding;
    ring_inputs   in_full;

    // Outputs of a drafting graph.
    ggml_tensor * out_hidden      = nullptr;  // [n_embd, n_draft, n_seq] F32
    ggml_tensor * out_cand        = nullptr;  // [top_k, n_draft, n_seq] I32, target ids
    ggml_tensor * out_score_first = nullptr;  // [top_k, 1, 1, n_seq] F32: from the anchor
    ggml_tensor * out_score       = nullptr;  // [top_k (to), top_k (from), n_draft - 1, n_seq] F32; null: n_draft = 1

  private:
    struct builder;

    graph_shape            shape_;
    ggml_backend_t         device_;
    ggml_context_ptr       ctx_;
    ggml_cgraph *          graph_ = nullptr;
    ggml_backend_sched_ptr sched_;

    std::vector<memory_use> memory_;
};

}  // namespace dflash2

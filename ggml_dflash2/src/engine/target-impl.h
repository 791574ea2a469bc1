// What a target holds; seen by the files that implement it only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/row-cut.h"
#include "ggml_dflash2/target.h"
#include "llama-cpp.h"

namespace dflash2 {

struct batch_owner {
    llama_batch batch;

    explicit batch_owner(int32_t n) : batch(llama_batch_init(n, 0, 1)) {}

    ~batch_owner() { llama_batch_free(batch); }

    batch_owner(const batch_owner &)             = delete;
    batch_owner & operator=(const batch_owner &) = delete;
};

struct target::impl {
    // Rows with logits per sequence and decode: bounds the compute buffer, which else holds n_batch rows of the
    // vocabulary.
    static constexpr int32_t MAX_DRAFT_ROWS = 32;

    std::string                  path;
    llama_model_ptr              model;
    llama_context_ptr            ctx;
    const llama_vocab *          vocab     = nullptr;
    int32_t                      n_threads = 1;
    bool                         plan_only = false;
    std::unique_ptr<batch_owner> batch;
    std::unique_ptr<row_cut>     cut;  // null: rows are never cut
    std::vector<int32_t>         taps;

    std::vector<int32_t> end;     // [n_seq] positions in the memory
    std::vector<int32_t> n_snap;  // [n_seq] positions that snapshots can take back: inside the last decode, once

    // Of the last decode.
    std::vector<target_row> rows;
    std::vector<bool>       cut_rows;
    bool                    tapped = false;  // it ran with the present taps

    bool attention_only() const {
        const llama_model * m = model.get();
        return !llama_model_is_recurrent(m) && !llama_model_is_hybrid(m) && !llama_model_has_encoder(m);
    }

    std::string arch() const {
        char buf[128] = "";
        llama_model_meta_val_str(model.get(), "general.architecture", buf, sizeof(buf));
        return buf;
    }
};

}  // namespace dflash2

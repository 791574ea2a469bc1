// Token embeddings read on the host: a draft needs one row per sequence and the mask's, so the table need not be on the
// device.
#pragma once

#include <vector>

#include "ggml_dflash2/types.h"

struct ggml_tensor;

namespace dflash2 {

class embedding {
  public:
    explicit embedding(const ggml_tensor * table) : table_(table) {}  // [n_embd, n_vocab], in host memory

    void read(token_id id, float * out);  // [n_embd]

  private:
    const ggml_tensor *  table_;
    std::vector<uint8_t> row_;
};

}  // namespace dflash2

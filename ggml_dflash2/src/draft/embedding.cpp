#include "draft/embedding.h"

#include <cstring>

#include "ggml-backend.h"
#include "ggml.h"

namespace dflash2 {

void embedding::read(token_id id, float * out) {
    row_.resize(ggml_row_size(table_->type, table_->ne[0]));
    ggml_backend_tensor_get(table_, row_.data(), (size_t) id * table_->nb[1], row_.size());
    if (table_->type == GGML_TYPE_F32) {
        std::memcpy(out, row_.data(), row_.size());
    } else {
        ggml_get_type_traits(table_->type)->to_float(row_.data(), out, table_->ne[0]);
    }
}

}  // namespace dflash2

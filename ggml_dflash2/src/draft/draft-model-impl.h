// What a draft_model holds; seen by the draft layer only.
#pragma once

#include "draft/weights.h"
#include "ggml_dflash2/draft-model.h"

namespace dflash2 {

struct draft_model::impl {
    std::string        path;
    draft_hparams      hp;
    draft_pairing      pairing;
    ggml_backend_dev_t device    = nullptr;
    bool               plan_only = false;
    draft_weights      weights;
};

}  // namespace dflash2

// The ggml backends that a drafter computes on.
#pragma once

#include <vector>

#include "draft/draft-model-impl.h"
#include "ggml-cpp.h"
#include "ggml_dflash2/drafter.h"

namespace dflash2 {

// Checks that embedding and head exist on one side and fit. Throws errc::incompatible.
void check_shared(const draft_model::impl & model, const shared_tensors & shared);

// The drafter's device, the devices that hold shared tensors, and the CPU last, without repeats. Throws errc::memory.
std::vector<ggml_backend_ptr> make_backends(const draft_model::impl & model, const shared_tensors & shared,
                                            int32_t n_threads);

}  // namespace dflash2

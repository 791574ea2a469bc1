// The ggml backends that a drafter computes on.
#pragma once

#include <vector>

#include "draft/draft-model-impl.h"
#include "ggml-cpp.h"

namespace dflash2 {

bool is_cpu(ggml_backend_dev_t device);

// Checks that embedding and head exist on one side, fit, and lie where they can be used. Throws errc::incompatible.
void check_shared(const draft_model::impl & model, const shared_tensors & shared);

// The drafter's device, that of a shared head, and the CPU last, without repeats. Throws errc::memory.
std::vector<ggml_backend_ptr> make_backends(const draft_model::impl & model, const shared_tensors & shared,
                                            int32_t n_threads);

// Every node must run on backends[0], or on the device of another that holds its weights: nothing falls back to the CPU
// unnoticed. Throws errc::incompatible naming the op.
void check_ops(ggml_cgraph * graph, const std::vector<ggml_backend_t> & backends);

}  // namespace dflash2

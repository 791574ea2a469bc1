// Hyper-parameters of a drafter file: read, then checked against each other.
#pragma once

#include "draft/gguf-file.h"
#include "ggml_dflash2/draft-model.h"

namespace dflash2 {

// Throws errc::format naming the key.
draft_hparams read_hparams(const gguf_file & file);
draft_pairing read_pairing(const gguf_file & file);

}  // namespace dflash2

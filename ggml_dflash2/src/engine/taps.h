// Which layer inputs the pinned libllama can expose.
#pragma once

#include <cstdint>
#include <string>

namespace dflash2 {

// Empty when layer `layer` of `arch` with n_layer layers can be tapped, else the reason.
std::string tap_refusal(const std::string & arch, int32_t n_layer, int32_t layer);

}  // namespace dflash2

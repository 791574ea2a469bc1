// The one exception type of the library. Messages name the thing, what was expected, what was found and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace dflash2 {

enum class errc {
    file,          // cannot be opened or read
    format,        // a model file is malformed, truncated or not a DFlash 2 drafter
    incompatible,  // target and drafter do not fit, or the target lacks a needed ability
    argument,      // a parameter is out of range
    context_full,  // no room left in the target's context
    decode,        // libllama or a ggml backend failed
    memory,        // an allocation failed
};

class error : public std::runtime_error {
  public:
    error(errc code, const std::string & message) : std::runtime_error(message), code_(code) {}

    errc code() const noexcept { return code_; }

  private:
    errc code_;
};

}  // namespace dflash2

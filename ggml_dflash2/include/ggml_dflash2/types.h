// Plain types shared by every layer. No behaviour.
#pragma once

#include <cstdint>
#include <vector>

namespace dflash2 {

using token_id = int32_t;

struct token_prob {
    token_id id;
    float    p;
};

// A probability distribution over tokens: ids are distinct, absent ids have p = 0, the sum is 1 up to rounding.
using law = std::vector<token_prob>;

}  // namespace dflash2

#include "ggml_dflash2/lattice.h"

#include <algorithm>
#include <string>

#include "ggml_dflash2/error.h"

namespace dflash2 {

void validate(const lattice & lat, int32_t n_vocab) {
    const auto fail = [](const std::string & what) {
        throw error(errc::argument, "lattice: " + what + "; mend the drafter");
    };
    if (lat.top_k < 1 || lat.n_pos < 0) {
        fail("expected top_k >= 1 and n_pos >= 0, found " + std::to_string(lat.top_k) + " and " +
             std::to_string(lat.n_pos));
    }
    const size_t k      = lat.top_k;
    const size_t n_cand = k * lat.n_pos;
    if (lat.cand.size() != n_cand || lat.score.size() / k != n_cand || lat.score.size() % k != 0) {
        fail("expected top_k x n_pos = " + std::to_string(n_cand) +
             " candidates and top_k times as many scores, found " + std::to_string(lat.cand.size()) + " and " +
             std::to_string(lat.score.size()));
    }
    for (size_t i = 0; i < n_cand; ++i) {
        const token_id id    = lat.cand[i];
        const auto     first = lat.cand.begin() + i / k * k;
        const auto     here  = lat.cand.begin() + i;
        if (id < 0 || id >= n_vocab) {
            fail("position " + std::to_string(i / k) + ": expected ids below " + std::to_string(n_vocab) + ", found " +
                 std::to_string(id));
        }
        if (std::find(first, here, id) != here) {
            fail("position " + std::to_string(i / k) + ": expected distinct candidates, found " + std::to_string(id) +
                 " twice");
        }
    }
}

}  // namespace dflash2

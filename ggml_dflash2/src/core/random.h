// Counter-based random numbers: a pure function of (seed, sequence, stream, position, round), no state.
// Streams are independent, so a draft draw can never leak into the acceptance or the residual draw.
#pragma once

#include <cstdint>

namespace dflash2 {

enum class random_stream : uint32_t {
    draft,     // the walk's draw of a drafted token
    accept,    // the acceptance test of a drafted token
    residual,  // the replacement after a rejection, the bonus token, and plain sampling
};

class random_source {
  public:
    explicit random_source(uint64_t seed = 0, uint32_t sequence = 0) : seed_(seed), sequence_(sequence) {}

    // Uniform in (0, 1], never 0, 53 bits. position: index in the sequence of the token that is drawn.
    // round: number of the draft round; it makes the draw of a token that is drafted again independent of the first.
    double uniform(random_stream stream, uint32_t position, uint32_t round = 0) const;

  private:
    uint64_t seed_;
    uint32_t sequence_;
};

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11), for tests and for uniform().
// counter and out: 4 words; key: 2 words.
void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

}  // namespace dflash2

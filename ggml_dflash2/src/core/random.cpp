#include "core/random.h"

namespace dflash2 {

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
    uint32_t k[2] = {key[0], key[1]};
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t(0xD2511F53) * c[0];
        const uint64_t b = uint64_t(0xCD9E8D57) * c[2];

        c[0] = uint32_t(b >> 32) ^ c[1] ^ k[0];
        c[1] = uint32_t(b);
        c[2] = uint32_t(a >> 32) ^ c[3] ^ k[1];
        c[3] = uint32_t(a);

        k[0] += 0x9E3779B9;
        k[1] += 0xBB67AE85;
    }
    for (int i = 0; i < 4; ++i) {
        out[i] = c[i];
    }
}

double random_source::uniform(random_stream stream, uint32_t position, uint32_t round) const {
    const uint32_t counter[4] = {position, uint32_t(stream), sequence_, round};
    const uint32_t key[2]     = {uint32_t(seed_), uint32_t(seed_ >> 32)};
    uint32_t       out[4];
    philox4x32(counter, key, out);

    const uint64_t bits = (uint64_t(out[0]) << 32 | out[1]) >> 11;  // 53 bits: what a double holds exactly
    return double(bits + 1) * 0x1p-53;
}

}  // namespace dflash2

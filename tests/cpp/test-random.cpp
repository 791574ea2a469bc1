#include "core/random.h"

#include <algorithm>
#include <set>

#include "testing.h"

using namespace dflash2;

TEST(philox_gives_the_known_answers_of_random123) {
    const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (const auto & k : known) {
        uint32_t out[4];
        philox4x32(k.counter, k.key, out);
        for (int i = 0; i < 4; ++i) {
            CHECK(out[i] == k.out[i]);
        }
    }
}

TEST(uniform_is_the_top_53_bits_shifted_off_zero) {
    // first known answer: 0x6627e8d5e169c58d >> 11, plus 1, over 2^53
    CHECK(random_source(0, 0).uniform(random_stream::draft, 0, 0) == (double(0xCC4FD1ABC2D38) + 1) * 0x1p-53);
}

TEST(uniform_stays_in_0_1_and_has_the_moments_of_a_uniform) {
    const random_source random(42, 7);
    const int           n   = 200000;
    double              sum = 0, sum2 = 0, lowest = 1, highest = 0;
    for (int i = 0; i < n; ++i) {
        const double u = random.uniform(random_stream::accept, i);
        sum += u;
        sum2 += u * u;
        lowest  = std::min(lowest, u);
        highest = std::max(highest, u);
    }
    CHECK(lowest > 0.0 && lowest < 1e-4);
    CHECK(highest <= 1.0 && highest > 1.0 - 1e-4);
    CHECK_NEAR(sum / n, 1.0 / 2, 0.003);   // 4.6 standard errors
    CHECK_NEAR(sum2 / n, 1.0 / 3, 0.003);  // 4.5 standard errors
}

TEST(every_coordinate_of_a_draw_changes_it) {
    std::set<double> seen;
    int              n = 0;
    for (uint64_t seed : {0ull, 1ull, 1ull << 32, ~0ull}) {
        for (uint32_t sequence : {0u, 1u, 2u}) {
            for (random_stream stream : {random_stream::draft, random_stream::accept, random_stream::residual}) {
                for (uint32_t position : {0u, 1u, 2u}) {
                    for (uint32_t round : {0u, 1u, 2u}) {
                        seen.insert(random_source(seed, sequence).uniform(stream, position, round));
                        n += 1;
                    }
                }
            }
        }
    }
    CHECK(int(seen.size()) == n);
}

TEST(a_draw_depends_on_its_coordinates_only) {
    const random_source random(9, 3);
    const double        u = random.uniform(random_stream::residual, 100, 5);
    random.uniform(random_stream::draft, 100, 5);
    CHECK(random.uniform(random_stream::residual, 100, 5) == u);
    CHECK(random_source(9, 3).uniform(random_stream::residual, 100, 5) == u);
}

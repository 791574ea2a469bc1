// The simulated machines and texts that lengths are tested on, and controllers that keep rows.
#pragma once

#include <cmath>
#include <vector>

#include "core/length.h"
#include "sim.h"

// Machines: ms of a pass by rows. A flat one; an H200 with Q4_K, where 9 rows cost less
// than 8; one CPU core with SmolLM2 in Q4_1 and in Q4_0, drafter fast and slow; experts on a CPU.
inline const sim::machine flat     = {{{1, 20.0}, {16, 21.5}}, 3.0, 0.05};
inline const sim::machine h200     = {{{1, 9.1},
                                       {2, 9.95},
                                       {3, 11.8},
                                       {4, 14.1},
                                       {5, 15.1},
                                       {6, 16.9},
                                       {7, 18.7},
                                       {8, 20.8},
                                       {9, 18.4},
                                       {12, 18.7},
                                       {16, 19.0}},
                                      5.0,
                                      0.1};
inline const sim::machine q4_1     = {{{1, 30.3}, {2, 47.6}, {4, 83.3}, {8, 150.9}, {16, 300.0}}, 12.0, 5.0};
inline const sim::machine q4_1slow = {{{1, 30.3}, {2, 47.6}, {4, 83.3}, {8, 150.9}, {16, 300.0}}, 30.0, 10.0};
inline const sim::machine q4_0     = {{{1, 19.6}, {2, 29.4}, {4, 30.1}, {8, 50.0}, {16, 95.0}}, 6.0, 1.5};
inline const sim::machine moe      = {{{1, 50.0}, {2, 72.0}, {4, 100.0}, {8, 137.5}, {16, 190.0}}, 8.0, 0.3};

inline const std::vector<const sim::machine *> machines = {&flat, &h200, &q4_1, &q4_1slow, &q4_0, &moe};

// Texts.
inline sim::text even(double accept) {
    return {[=](int64_t, int32_t) { return accept; }};
}

inline double trained(int64_t, int32_t pos) {
    static const double survival[] = {1.0, .638, .396, .256, .178, .127, .089, .059};
    return survival[pos + 1] / survival[pos];
}

inline double fading(int64_t, int32_t pos) {
    return std::pow(0.85, pos + 1);
}

inline sim::text informed(sim::text t) {
    t.spread   = 1.5;
    t.informed = true;
    return t;
}

inline sim::text shown(sim::text t) {
    t.shown = true;
    return t;
}

inline constexpr int64_t phase = 300;  // tokens

inline sim::text phases(double first, double second) {
    return {[=](int64_t token, int32_t) { return token / phase % 2 == 0 ? first : second; }};
}

inline sim::scenario on(const sim::machine & m, const sim::text & t, uint32_t seed, int64_t n_rounds,
                        int64_t n_tokens = 0) {
    return {[&m](int64_t) -> const sim::machine & { return m; }, t, {0.05, 0.02, seed}, n_tokens, n_rounds};
}

inline dflash2::length_params staying(int32_t n_stay) {
    dflash2::length_params params;
    params.n_stay = n_stay;
    if (n_stay > 1) {
        params.probe_grant = 8.0;
    }
    return params;
}

// The steady pace of a machine.
inline void tell(dflash2::length_controller & length, const sim::machine & m) {
    for (int32_t rows = 1; rows <= 9; ++rows) {
        for (int i = 0; i < 5; ++i) {
            length.know_pass(rows, m.pass_ms(rows, 0));
        }
    }
}

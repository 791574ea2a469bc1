// Requests to a simulated machine, one after another: most of one kind, some that repeat a text they were given.
#pragma once

#include "sim.h"

namespace sim {

struct request {
    const text * words;
    int64_t      n_tokens;
};

// Sums over the requests for one text.
struct served {
    score all;
    score late;  // from token n_begin on
};

static constexpr int64_t n_begin = 40;

inline std::map<const text *, served> serve(const machine & m, const std::vector<request> & requests,
                                            const noise & timing, const policy & p) {
    runner                         r(timing);
    std::map<const text *, served> out;
    for (const request & q : requests) {
        served & s = out[q.words];
        p.begin_request();
        r.begin_request();
        for (int64_t token = 0; token < q.n_tokens;) {
            score     sum;
            const int room = int(std::min<int64_t>(n_max, q.n_tokens - token - 1));
            const int n    = r.round(m, *q.words, token, p, sum, room);
            for (score * to : {&s.all, token < n_begin ? nullptr : &s.late}) {
                if (to) {
                    to->tokens += sum.tokens;
                    to->ms += sum.ms;
                }
            }
            token += n;
        }
    }
    return out;
}

}  // namespace sim

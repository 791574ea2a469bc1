// Drafts of a real pair at every token of real answers (scripts/record_drafts.py), served on a simulated machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "sim.h"

namespace sim {

struct recorded_draft {
    double  gap = 0.0;  // of the two largest logits that the anchor was chosen from
    float   confidence[n_max];
    int32_t n_right = 0;  // tokens that the target accepts
};

struct recorded_request {
    std::string                 label;
    int32_t                     n_prompt = 0;
    std::vector<recorded_draft> at;  // by anchor
};

inline std::vector<recorded_request> read_requests(const std::string & file) {
    std::vector<recorded_request> out;
    std::ifstream                 in(file);
    recorded_request              r;
    for (size_t n; in >> r.label >> r.n_prompt >> n;) {
        r.at.resize(n);
        for (recorded_draft & d : r.at) {
            in >> d.gap;
            for (float & c : d.confidence) {
                in >> c;
                c /= 100.0f;
            }
            std::string right;
            in >> right;
            d.n_right = int32_t(std::min(right.find('0'), right.size()));
        }
        out.push_back(r);
    }
    return out;
}

// tells_gap: the policy sees how sure the target is.
inline score serve(const machine & m, const recorded_request & request, stopwatch & watch, const policy & p,
                   bool tells_gap = true) {
    score         sum;
    const int32_t n = int32_t(request.at.size());
    p.begin_request();
    watch.begin_request();
    for (int32_t i = 0; i < n;) {
        const recorded_draft & d = request.at[i];
        dflash2::round_outcome r;
        r.n_context = request.n_prompt + i;
        r.n_draft   = std::min(p.width(r.n_context, watch.n_put_off()), n - i - 1);
        r.n_verify  = r.n_draft > 0 ? p.verify({d.confidence, d.confidence + r.n_draft}) : 0;
        r.n_rows    = p.rows(r.n_verify + 1);
        r.n_accept  = std::min(d.n_right, r.n_verify);
        sum.ms += watch.run(m, r);
        i += 1 + r.n_accept;
        sum.tokens += 1 + r.n_accept;
        if (tells_gap && i < n) {
            r.logit_gap = request.at[i].gap;
        }
        p.observe(r);
    }
    return sum;
}

}  // namespace sim

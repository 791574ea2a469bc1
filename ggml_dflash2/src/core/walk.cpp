#include "core/walk.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "core/verify.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

static constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

struct successor {
    token_id id;
    float    score;  // finite, or minus_infinity for any score that is not
    int32_t  index;  // in the lattice
};

// Successors of candidate `from`, best first. Nothing that follows depends on the order of the candidates.
static std::vector<successor> successors(const lattice & lat, int32_t pos, int32_t from) {
    const size_t           k     = lat.top_k;
    const token_id *       cand  = lat.cand.data() + k * pos;
    const float *          score = lat.score.data() + k * (k * pos + from);
    std::vector<successor> to(k);
    for (size_t i = 0; i < k; ++i) {
        to[i] = {cand[i], std::isfinite(score[i]) ? score[i] : minus_infinity, int32_t(i)};
    }
    std::sort(to.begin(), to.end(), [](const successor & a, const successor & b) {
        return a.score != b.score ? a.score > b.score : a.id < b.id;
    });
    return to;
}

// softmax(score / temperature), in the order of `to`.
static law softmax(const std::vector<successor> & to, double temperature) {
    std::vector<double> weight(to.size(), 0.0);
    double              sum  = 0.0;
    const double        best = to[0].score;
    for (size_t i = 0; i < to.size(); ++i) {
        // the best weighs 1 also when no score is finite
        weight[i] = i == 0 ? 1.0 : to[i].score == minus_infinity ? 0.0 : std::exp((to[i].score - best) / temperature);
        sum += weight[i];
    }
    law q(to.size());
    for (size_t i = 0; i < to.size(); ++i) {
        q[i] = {to[i].id, float(weight[i] / sum)};
    }
    return q;
}

// Successors that survive the cut: always the first ones, since `to` is sorted.
static size_t n_kept(const std::vector<successor> & to, const walk_cut & cut) {
    size_t n = to.size();
    if (cut.top_k > 0) {
        n = std::min(n, size_t(cut.top_k));
    }
    if (cut.top_p >= 1.0f && cut.min_p <= 0.0f) {
        return n;
    }
    const law q    = softmax({to.begin(), to.begin() + ptrdiff_t(n)}, 1.0);
    double    mass = 0.0;
    size_t    kept = 0;
    while (kept < n && (kept == 0 || (mass < cut.top_p && q[kept].p >= cut.min_p * q[0].p))) {
        mass += q[kept++].p;
    }
    return kept;
}

draft_path walk_greedy(const lattice & lat, float p_min) {
    draft_path path;
    int32_t    from = 0;
    for (int32_t pos = 0; pos < lat.n_pos; ++pos) {
        const std::vector<successor> to   = successors(lat, pos, from);
        const successor &            best = to[0];
        if (p_min > 0.0f && softmax(to, 1.0)[0].p < p_min) {
            break;
        }
        path.token.push_back(best.id);
        path.q.push_back({{best.id, 1.0f}});
        from = best.index;
    }
    return path;
}

draft_path walk_sample(const lattice & lat, float temperature, const random_source & random, uint32_t position,
                       uint32_t round, const walk_cut & cut) {
    if (!(temperature > 0.0f)) {
        throw error(errc::argument, "temperature: expected a value > 0 for a sampled walk, found " +
                                        std::to_string(temperature) + "; use the greedy walk at 0");
    }
    draft_path path;
    int32_t    from = 0;
    for (int32_t pos = 0; pos < lat.n_pos; ++pos) {
        std::vector<successor> to = successors(lat, pos, from);
        to.resize(n_kept(to, cut));
        law            q        = softmax(to, temperature);
        const token_id id       = draw(q, random.uniform(random_stream::draft, position + 1 + pos, round));
        const auto     is_drawn = [id](const successor & s) { return s.id == id; };

        from = std::find_if(to.begin(), to.end(), is_drawn)->index;
        path.token.push_back(id);
        path.q.push_back(std::move(q));
    }
    return path;
}

std::vector<float> path_confidence(const lattice & lat, const draft_path & path) {
    const size_t       k    = size_t(lat.top_k);
    size_t             from = 0;
    std::vector<float> confidence;
    for (size_t pos = 0; pos < path.token.size(); ++pos) {
        const float * score = lat.score.data() + k * (k * pos + from);
        double        best = -std::numeric_limits<double>::infinity(), sum = 0.0;
        for (size_t to = 0; to < k; ++to) {
            best = std::isfinite(score[to]) ? std::max(best, double(score[to])) : best;
        }
        for (size_t to = 0; to < k; ++to) {
            sum += std::isfinite(score[to]) ? std::exp(score[to] - best) : 0.0;
        }
        confidence.push_back(sum > 0.0 ? float(1.0 / sum) : 0.0f);
        const auto cand = lat.cand.begin() + std::ptrdiff_t(k * pos);
        from            = size_t(std::find(cand, cand + std::ptrdiff_t(k) - 1, path.token[pos]) - cand);
    }
    return confidence;
}

}  // namespace dflash2

#include "core/verify.h"

#include <algorithm>
#include <string>

#include "ggml_dflash2/error.h"

namespace dflash2 {

// A law over the whole vocabulary usually lists ids in order, so the entry of an id is at that index.
template <typename Law>
static auto find(Law & l, token_id id) {
    if (size_t(id) < l.size() && l[size_t(id)].id == id) {
        return l.begin() + id;
    }
    return std::find_if(l.begin(), l.end(), [id](const token_prob & t) { return t.id == id; });
}

// NaN counts as 0: comparisons with it are false.
static double mass(const law & l) {
    double sum = 0.0;
    for (const token_prob & t : l) {
        sum += t.p > 0.0f ? t.p : 0.0f;
    }
    return sum;
}

float prob_of(const law & l, token_id id) {
    const auto it = find(l, id);
    return it != l.end() ? it->p : 0.0f;
}

token_id draw(const law & l, double u) {
    const double goal = u * mass(l);  // the sum below reaches mass(l) exactly, so u = 1 stays inside
    double       sum  = 0.0;
    for (const token_prob & t : l) {
        if (t.p > 0.0f) {
            sum += t.p;
            if (sum >= goal) {
                return t.id;
            }
        }
    }
    throw error(errc::decode, "law: expected a token with p > 0, found none among " + std::to_string(l.size()) +
                                  "; the model computes NaN, or the sampling settings exclude every token");
}

law residual(const law & p, const law & q) {
    law r = p;
    for (const token_prob & t : q) {
        const auto it = find(r, t.id);
        if (it != r.end()) {
            it->p -= t.p;
        }
    }
    const double sum = mass(r);
    if (!(sum > 0.0)) {
        return p;
    }
    r.erase(std::remove_if(r.begin(), r.end(), [](const token_prob & t) { return !(t.p > 0.0f); }), r.end());
    for (token_prob & t : r) {
        t.p = float(t.p / sum);
    }
    return r;
}

verdict verify_match(const std::vector<token_id> & draft, const pick_at & pick) {
    const int32_t n_draft = int32_t(draft.size());
    for (int32_t i = 0; i < n_draft; ++i) {
        const token_id next = pick(i);
        if (next != draft[i]) {
            return {i, next};
        }
    }
    return {n_draft, pick(n_draft)};
}

double law_view::prob(token_id id) const {
    return prob_of(*law_, id);
}

token_id law_view::draw(double u) const {
    return dflash2::draw(*law_, u);
}

token_id law_view::draw_residual(const law & q, double u) const {
    return dflash2::draw(residual(*law_, q), u);
}

verdict verify_rejection(const draft_path & path, const target_law_at & p, const random_source & random,
                         uint32_t position) {
    const int32_t n_draft = int32_t(path.token.size());
    for (int32_t i = 0; i < n_draft; ++i) {
        const uint32_t     at = position + 1 + i;
        const target_law & pi = p(i);
        const law &        qi = path.q[i];
        const double       px = pi.prob(path.token[i]);
        const double       qx = prob_of(qi, path.token[i]);
        if (px > 0.0 && random.uniform(random_stream::accept, at) * qx <= px) {
            continue;
        }
        return {i, pi.draw_residual(qi, random.uniform(random_stream::residual, at))};
    }
    return {n_draft, p(n_draft).draw(random.uniform(random_stream::residual, position + 1 + n_draft))};
}

verdict verify_rejection(const draft_path & path, const law_at & p, const random_source & random, uint32_t position) {
    const law           none;
    law_view            view(none);
    const target_law_at at = [&](int32_t i) -> const target_law & { return view = law_view(p(i)); };
    return verify_rejection(path, at, random, position);
}

}  // namespace dflash2

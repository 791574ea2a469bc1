// In builds with DFLASH2_BENCH only: accepts at given rates instead of by the target's law, to time synthetic weights.
// The work is that of real acceptance; the text is not the target's.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "core/verify.h"

namespace dflash2 {

#ifdef DFLASH2_BENCH

class forced_acceptance {
  public:
    // rates[i]: probability that draft tokens 0 .. i are all kept. Empty: nothing is forced.
    void set(const std::vector<double> & rates, uint64_t seed) {
        rates_ = rates;
        std::mt19937_64 rng(seed);
        u_ = std::uniform_real_distribution<double>()(rng);
    }

    // Begins a round. The draws are evenly spread (multiples of the golden ratio), so that short runs keep the rates.
    void begin(const draft_path & path) {
        path_     = &path;
        n_accept_ = 0;
        u_        = std::fmod(u_ + 0.6180339887498949, 1.0);
        while ((size_t) n_accept_ < std::min(rates_.size(), path.token.size()) && u_ < rates_[n_accept_]) {
            n_accept_++;
        }
    }

    // The pick of a row as it has to be.
    token_id pick(int32_t row, token_id picked) const {
        if (rates_.empty() || row >= (int32_t) path_->token.size()) {
            return picked;
        }
        const token_id drafted = path_->token[row];
        return row < n_accept_ ? drafted : picked != drafted ? picked : drafted == 0 ? 1 : drafted - 1;
    }

    // The law of a row as it has to be.
    const target_law & law_of(int32_t row, const target_law & p) {
        law_.inner = &p;
        law_.kept  = row < n_accept_;
        return rates_.empty() ? p : law_;
    }

  private:
    struct forced_law final : target_law {
        const target_law * inner = nullptr;
        bool               kept  = false;

        double prob(token_id id) const override { return inner->prob(id) < 0.0 || !kept ? 0.0 : 1.0; }

        token_id draw(double u) const override { return inner->draw(u); }

        token_id draw_residual(const law & q, double u) const override { return inner->draw_residual(q, u); }
    };

    std::vector<double> rates_;
    double              u_        = 0.0;
    const draft_path *  path_     = nullptr;
    int32_t             n_accept_ = 0;
    forced_law          law_;
};

#else

struct forced_acceptance {
    void begin(const draft_path &) {}

    token_id pick(int32_t, token_id picked) const { return picked; }

    const target_law & law_of(int32_t, const target_law & p) const { return p; }
};

#endif

}  // namespace dflash2

// Decides how much of a drafted path the target keeps. Pure functions on numbers.
#pragma once

#include <functional>

#include "core/random.h"
#include "core/walk.h"
#include "ggml_dflash2/types.h"

namespace dflash2 {

struct verdict {
    int32_t  n_accept;  // drafted tokens kept
    token_id next;      // the token after them: the correction, or the bonus token when all were kept
};

// The target's law in row i, given that draft tokens 0..i-1 were kept. Called with i = 0, 1, .. in this order and only
// as far as needed, so a sampler chain can be advanced along the kept tokens without a roll-back.
// The returned reference must stay valid until the next call.
using law_at = std::function<const law &(int32_t i)>;

// What acceptance asks of a law, so that a wide one need not be listed.
class target_law {
  public:
    virtual ~target_law() = default;

    virtual double   prob(token_id id) const                      = 0;
    virtual token_id draw(double u) const                         = 0;  // as draw(law, u)
    virtual token_id draw_residual(const law & q, double u) const = 0;  // as draw(residual(law, q), u)
};

// A listed law. Not owned; must outlive the view.
class law_view final : public target_law {
  public:
    explicit law_view(const law & l) : law_(&l) {}

    double   prob(token_id id) const override;
    token_id draw(double u) const override;
    token_id draw_residual(const law & q, double u) const override;

  private:
    const law * law_;
};

// As law_at.
using target_law_at = std::function<const target_law &(int32_t i)>;

// The target's own pick in row i (argmax, or a draw from its law), under the same calling rule.
using pick_at = std::function<token_id(int32_t i)>;

// Keeps draft tokens while they equal the target's pick. Exact for any walk; the rule of llama.cpp.
verdict verify_match(const std::vector<token_id> & draft, const pick_at & pick);

// Speculative sampling (Leviathan et al. 2023, Chen et al. 2023): draft token x ~ q is kept with probability
// min(1, p(x)/q(x)); the first one that is not is replaced by a draw from max(p - q, 0), normalised; after the last one
// the bonus token is drawn from p. The emitted tokens have exactly the target's law.
// position: sequence position of the anchor. A position is tested once and filled once, so no round counter is needed.
// Throws errc::decode when a law has no p above 0.
verdict verify_rejection(const draft_path & path, const target_law_at & p, const random_source & random,
                         uint32_t position);
verdict verify_rejection(const draft_path & path, const law_at & p, const random_source & random, uint32_t position);

// Probability of id under a law, 0 when absent.
float prob_of(const law & l, token_id id);

// Inverse-CDF draw; u in (0, 1]. Never returns an id with p = 0 or NaN. The law need not be normalised.
// Throws errc::decode when no p is above 0.
token_id draw(const law & l, double u);

// max(p - q, 0), normalised. Falls back to p when nothing is left (p = q up to rounding).
law residual(const law & p, const law & q);

}  // namespace dflash2

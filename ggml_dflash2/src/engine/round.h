// One round over the running requests: draft, verify, accept.
#pragma once

#include <vector>

#include "engine/slot.h"

namespace dflash2 {

class round_runner {
  public:
    // dft may be null.
    round_runner(target & tgt, drafter * dft, const engine_params & params) : tgt_(tgt), dft_(dft), params_(params) {}

    // At least one token for every slot, all of which must be running.
    std::vector<progress> run(const std::vector<slot *> & running);

  private:
    // What a round does for one request.
    struct turn {
        slot *     s = nullptr;
        draft_path path;
        int32_t    first_row = 0;
    };

    void draft(std::vector<turn> & turns);
    void walk(turn & t, const lattice & lat) const;
    void verify(std::vector<turn> & turns);

    target &      tgt_;
    drafter *     dft_;
    engine_params params_;
};

}  // namespace dflash2

// One round over the running requests: choose lengths, draft, verify, accept.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "core/length.h"
#include "engine/slot.h"

namespace dflash2 {

class round_runner {
  public:
    // dft may be null. n_draft_max: tokens of a draft at most.
    round_runner(target & tgt, drafter * dft, const engine_params & params, int32_t n_draft_max);

    // Times passes for the numbers of rows that the controller may choose and tells it, so that it need not find out at
    // a request's cost. On accelerators first passes take many times as long as later ones: they are over then.
    // Empties sequence 0 of the target.
    void warm_up();

    // At least one token for every slot, all of which must be running.
    std::vector<progress> run(const std::vector<slot *> & running);

  private:
    // What a round does for one request.
    struct turn {
        slot *             s         = nullptr;
        int32_t            n_draft   = 0;  // width of its draft
        int32_t            n_drafted = 0;  // tokens of the walk
        draft_path         path;           // the walk, shortened to what is verified
        std::vector<float> confidence;     // per token of the path, for the length controller
        int32_t            n_rows    = 1;  // of the target pass, padding included
        int32_t            first_row = 0;
        slot::accepted     accepted  = {0, 0};

        void shorten(int32_t n);
    };

    length_controller & controller(size_t n_turns);
    static int32_t      n_put_off(const std::vector<turn *> & turns);
    turn *              choose_widths(std::vector<turn> & turns);
    void                draft(std::vector<turn> & turns);
    void                walk(turn & t, const lattice & lat) const;
    void                choose_length(turn & t);
    void                verify(std::vector<turn> & turns);
    double              logit_gap(const std::vector<turn> & turns) const;

    target &                tgt_;
    drafter *               dft_;
    engine_params           params_;
    int32_t                 n_draft_max_;
    std::function<double()> clock_;
    size_t                  n_rounds_ = 0;
    int32_t                 n_stay_   = 1;  // see length_params
    int64_t                 alone_    = 0;  // latest adaptive request that ran alone

    // By number of requests that run side by side, since that changes what a row costs.
    std::map<size_t, length_controller> lengths_;
};

}  // namespace dflash2

// What a decision about lengths rests on, and what a round is worth under it.
#pragma once

#include <cstdint>
#include <vector>

namespace dflash2 {

// Costs and acceptances: as believed, or as hoped for. A cost is infinite where too little is known.
struct outlook {
    std::vector<double>              row_ms;         // [n_rows_max + 1] of a target pass
    std::vector<int32_t>             rows;           // [n_max + 2]: of the pass that computes that many rows soonest
    std::vector<double>              pass;           // [n_max + 2] ms of that pass
    std::vector<double>              draft;          // [n_max + 1] ms
    std::vector<std::vector<double>> accept;         // [n_max, n_drafts] of recent drafts, at least one
    std::vector<double>              typical;        // [n_max] acceptance at typical confidence
    bool                             whole = false;  // drafts are verified whole

    // Fills rows and pass. Pads only where that saves a noticeable share of the time.
    void pad(int32_t n_max);
};

// Decides position by position whether it is verified. Stops before the first one that does not pay, whatever is
// verified after it. Both must outlive it: a view.
class stop_rule {
  public:
    // price: of time, in tokens per ms.
    stop_rule(const outlook & o, int32_t n_draft, double price) : o_(o), n_draft_(n_draft), price_(price) {}

    // accept: of the next position. The later ones are judged by their typical acceptance, since their confidence is
    // a function of the tokens drawn until there.
    bool goes_on(double accept);

  private:
    const outlook & o_;
    int32_t         n_draft_;
    double          price_;
    int32_t         n_        = 0;
    double          survival_ = 1.0;
};

struct worth {
    double tokens;
    double ms;

    double rate() const { return tokens / ms; }
};

// Of a round that drafts n_draft tokens if `decides` decides and `holds` holds: the mean over recent drafts.
worth value(const outlook & decides, const outlook & holds, int32_t n_draft, double price);

}  // namespace dflash2

// Time that may be lost on finding out whether drafting pays. It is earned as a share of plain decoding's time, which
// bounds the loss where drafting never pays.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dflash2 {

class budget {
  public:
    static constexpr double probes_most = 4.0;  // plain rounds that can be saved up for probes

    // Shares of plain decoding's time. grant: for probes to begin with, in plain rounds.
    budget(double probe_share, double look_share, double grant)
        : probe_share_(probe_share), look_share_(look_share), grant_(grant) {}

    // ms. Looks may also cost what drafting has saved of late, and wait until what it has lost is earned again.
    double for_probes() const { return probes_; }
    double most_for_probes() const { return std::max(probes_most, grant_); }  // in plain rounds
    double for_looks() const { return looks_ + saved_ + std::min(probes_, 0.0); }

    // A round of one of the three kinds, then earn(). Both others pay for what they lose out of what was saved before,
    // and for the rest like probes and looks.
    void probe(double lost_ms) { probes_ -= lost_ms; }
    void look(double saved_ms) { settle(saved_ms, looks_); }
    void draft(double saved_ms) { settle(saved_ms, probes_); }

    // plain_ms: of a plain round.
    void earn(double plain_ms, int32_t n_tokens);

  private:
    void settle(double saved_ms, double & purse);

    double probe_share_, look_share_, grant_;
    bool   granted_ = false;
    double probes_  = 0.0;  // ms
    double looks_   = 0.0;  // ms
    double saved_   = 0.0;  // ms
};

}  // namespace dflash2

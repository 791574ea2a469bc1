// Adds the wall time of a scope to a counter in milliseconds.
#pragma once

#include <chrono>

namespace dflash2 {

class timer {
  public:
    explicit timer(double & ms) : ms_(ms), start_(clock::now()) {}

    ~timer() { ms_ += std::chrono::duration<double, std::milli>(clock::now() - start_).count(); }

    timer(const timer &)             = delete;
    timer & operator=(const timer &) = delete;

  private:
    using clock = std::chrono::steady_clock;
    double &          ms_;
    clock::time_point start_;
};

}  // namespace dflash2

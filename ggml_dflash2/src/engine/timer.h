// Wall time in milliseconds.
#pragma once

#include <chrono>

namespace dflash2 {

inline double steady_ms() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Adds the time of a scope to a counter.
class timer {
  public:
    explicit timer(double & ms) : ms_(ms), start_(steady_ms()) {}

    ~timer() { ms_ += steady_ms() - start_; }

    timer(const timer &)             = delete;
    timer & operator=(const timer &) = delete;

  private:
    double & ms_;
    double   start_;
};

}  // namespace dflash2

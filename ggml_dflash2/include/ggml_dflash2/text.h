// Turns token pieces (bytes) into text that can be shown: whole UTF-8 characters, nothing of a stop string.
#pragma once

#include <string>
#include <vector>

namespace dflash2 {

class text_stream {
  public:
    // Empty stop strings are not allowed (errc::argument).
    explicit text_stream(std::vector<std::string> stop = {});

    // Appends one token's bytes and returns what became safe to show. Holds back an incomplete UTF-8 sequence and
    // any tail that may still grow into a stop string. After a stop string was completed: returns the text before
    // it, and stopped() is true; later calls return nothing.
    std::string push(const std::string & piece);

    // What was held back, at the end of the stream; invalid UTF-8 becomes U+FFFD. Empty after a stop.
    std::string finish();

    bool stopped() const { return stopped_; }

  private:
    std::vector<std::string> stop_;
    std::string              held_;
    bool                     stopped_ = false;
};

}  // namespace dflash2

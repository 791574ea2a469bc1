// Turns token pieces (bytes) into text that can be shown: whole UTF-8 characters, nothing of a stop string.
#pragma once

#include <string>
#include <vector>

namespace dflash2 {

class text_stream {
  public:
    // Throws errc::argument when a stop string is empty or not UTF-8.
    explicit text_stream(std::vector<std::string> stop = {});

    // Appends one token's bytes and returns what became safe to show. Holds back an incomplete UTF-8 sequence and
    // any tail that may still grow into a stop string; every maximal invalid part becomes one U+FFFD, as in Python's
    // bytes.decode(errors="replace"). After a stop string was completed: returns the text before it, and stopped()
    // is true; later calls return nothing. Of several, the stop string that is complete first wins, then the longest;
    // so the text does not depend on how it was cut into pieces.
    std::string push(const std::string & piece);

    // What was held back, at the end of the stream; an incomplete UTF-8 sequence becomes U+FFFD. Empty after a stop.
    std::string finish();

    bool stopped() const { return stopped_; }

  private:
    std::string release(bool last);

    std::vector<std::string> stop_;
    std::string              bytes_;  // an incomplete UTF-8 sequence
    std::string              text_;   // what may grow into a stop string
    bool                     stopped_ = false;
};

}  // namespace dflash2

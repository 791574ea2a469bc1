#include "core/text.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ggml_dflash2/error.h"

namespace dflash2 {

// Length of the longest prefix of [s, s + n) that starts a valid character, at least 1; `need` is the character's
// length, 0 when the first byte starts none. (Table 3-7 of the Unicode Standard.)
static size_t valid_prefix(const char * s, size_t n, size_t & need) {
    const auto at = [s](size_t i) { return uint8_t(s[i]); };

    const uint8_t lead = at(0);
    need               = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;

    uint8_t lo = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;  // no overlong forms
    uint8_t hi = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;  // no surrogates, nothing above U+10FFFF
    size_t  i  = 1;
    while (i < n && i < need && at(i) >= lo && at(i) <= hi) {
        i += 1;
        lo = 0x80;
        hi = 0xBF;
    }
    return i;
}

// Moves whole characters from `bytes` to the result; every maximal invalid part becomes one U+FFFD, as in Python.
// An incomplete character at the end stays, unless `last`.
static std::string decode(std::string & bytes, bool last) {
    std::string text;
    size_t      i = 0;
    while (i < bytes.size()) {
        size_t       need = 0;
        const size_t have = valid_prefix(bytes.data() + i, bytes.size() - i, need);
        if (have == need) {
            text.append(bytes, i, have);
        } else if (have < need && i + have == bytes.size() && !last) {
            break;
        } else {
            text += "\xEF\xBF\xBD";
        }
        i += have;
    }
    bytes.erase(0, i);
    return text;
}

// Length of the longest tail of text that is a proper prefix of stop.
static size_t open_tail(const std::string & text, const std::string & stop) {
    size_t n = std::min(text.size(), stop.size() - 1);
    while (n > 0 && text.compare(text.size() - n, n, stop, 0, n) != 0) {
        n -= 1;
    }
    return n;
}

text_stream::text_stream(std::vector<std::string> stop) : stop_(std::move(stop)) {
    for (const std::string & s : stop_) {
        std::string bytes = s;
        if (s.empty() || decode(bytes, true) != s) {
            throw error(errc::argument, "stop: expected non-empty UTF-8 strings, found " +
                                            std::string(s.empty() ? "an empty one" : "invalid UTF-8") +
                                            "; leave it out");
        }
    }
}

std::string text_stream::push(const std::string & piece) {
    if (stopped_) {
        return "";
    }
    bytes_ += piece;
    return release(false);
}

std::string text_stream::finish() {
    return stopped_ ? "" : release(true);
}

std::string text_stream::release(bool last) {
    text_ += decode(bytes_, last);

    size_t begin = std::string::npos;  // of the stop string that is complete first; the longest of those
    size_t end   = std::string::npos;
    size_t open  = 0;
    for (const std::string & s : stop_) {
        const size_t at = text_.find(s);
        if (at != std::string::npos && std::make_pair(at + s.size(), at) < std::make_pair(end, begin)) {
            begin = at;
            end   = at + s.size();
        }
        open = std::max(open, open_tail(text_, s));
    }
    stopped_ = begin != std::string::npos;

    const size_t n_safe = stopped_ ? begin : last ? text_.size() : text_.size() - open;
    std::string  safe   = text_.substr(0, n_safe);
    text_.erase(0, n_safe);
    return safe;
}

}  // namespace dflash2

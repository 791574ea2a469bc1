#include "core/text.h"

#include <random>

#include "testing.h"

using namespace dflash2;
using strings = std::vector<std::string>;

static const std::string bad = "\xEF\xBF\xBD";  // U+FFFD

static std::string run(const strings & pieces, const strings & stop = {}) {
    text_stream stream(stop);
    std::string text;
    for (const std::string & piece : pieces) {
        text += stream.push(piece);
    }
    return text + stream.finish();
}

// Cuts bytes into pieces of 0 to 4 bytes.
static strings cut(const std::string & bytes, std::mt19937 & rng) {
    strings pieces;
    for (size_t i = 0; i < bytes.size();) {
        const size_t n = rng() % 5;
        pieces.push_back(bytes.substr(i, n));
        i += n;
    }
    return pieces;
}

TEST(a_character_split_over_tokens_is_shown_whole) {
    text_stream stream;
    CHECK(stream.push("a\xE2") == "a");
    CHECK(stream.push("\x82") == "");
    CHECK(stream.push("\xAC!") == "\xE2\x82\xAC!");
    CHECK(stream.finish() == "");
}

TEST(invalid_bytes_become_what_python_makes_of_them) {
    // bytes, and the result of bytes.decode("utf-8", errors="replace"); R marks U+FFFD
    const struct {
        std::string bytes, text;
    } known[] = {
        {"a\x80z", "aRz"},                                             // stray continuation
        {"\xC0\xAF", "RR"},                                            // overlong
        {"\xC2", "R"},                                                 // truncated
        {"\xC2z", "Rz"},                                               // truncated in the middle
        {"\xE0\x80\xAF", "RRR"},                                       // overlong, three bytes
        {"\xE2\x82z", "Rz"},                                           // maximal part of two bytes
        {"\xE2\x82\xE2\x82\xAC", "R\xE2\x82\xAC"},                     // a truncated and a whole character
        {"\xED\x9F\xBF\xED\xA0\x80", "\xED\x9F\xBFRRR"},               // below and in the surrogates
        {"\xF0\x80\x80\x80", "RRRR"},                                  // overlong, four bytes
        {"\xF0\x9F\x98", "R"},                                         // truncated
        {"\xF0\x9F\x98\x80\xF0\x9Fx", "\xF0\x9F\x98\x80Rx"},           // whole and truncated
        {"\xF4\x8F\xBF\xBF\xF4\x90\x80\x80", "\xF4\x8F\xBF\xBFRRRR"},  // U+10FFFF and above
        {"\xF5\x80\xFE\xFF", "RRRR"},                                  // bytes that occur nowhere
    };
    for (const auto & k : known) {
        std::string want;
        for (char c : k.text) {
            want += c == 'R' ? bad : std::string(1, c);
        }
        CHECK(run({k.bytes}) == want);
    }
}

TEST(any_split_of_any_bytes_gives_the_same_text) {
    // bytes that meet every border of the UTF-8 tables, and letters that form stop strings
    const std::string alphabet = "ab\x7F\x80\x8F\x90\x9F\xA0\xBF\xC1\xC2\xDF\xE0\xE1\xED\xEF\xF0\xF1\xF4\xF5\xFF";
    const strings     stops[]  = {{}, {"ab"}, {"aab", "aba", "b\xC2\x80"}, {"bbbb", bad + bad + bad + bad}};
    std::mt19937      rng(1);
    for (int i = 0; i < 4000; ++i) {
        std::string bytes;
        for (size_t n = rng() % 24; bytes.size() < n;) {
            bytes += alphabet[rng() % (i % 2 ? alphabet.size() : 5)];
        }
        for (const strings & stop : stops) {
            CHECK(run(cut(bytes, rng), stop) == run({bytes}, stop));
        }
    }
}

TEST(the_text_is_that_before_the_stop_string_that_ends_first) {
    const strings stop = {"aab", "abca", "bc", "ccc"};
    std::mt19937  rng(2);
    for (int i = 0; i < 4000; ++i) {
        std::string text;
        while (text.size() < 12) {
            text += char('a' + rng() % 3);
        }
        std::string want = text;
        for (size_t end = 0; end <= text.size() && want == text; ++end) {
            for (size_t begin = 0; begin < end && want == text; ++begin) {
                for (const std::string & s : stop) {
                    want = text.compare(begin, end - begin, s) == 0 ? text.substr(0, begin) : want;
                }
            }
        }
        CHECK(run(cut(text, rng), stop) == want);
    }
}

TEST(a_stop_string_over_token_borders_stops) {
    text_stream stream({"<end>"});
    CHECK(stream.push("hi <") == "hi ");
    CHECK(stream.push("en") == "");
    CHECK(!stream.stopped());
    CHECK(stream.push("d> more") == "");
    CHECK(stream.stopped());
    CHECK(stream.push("x") == "" && stream.finish() == "");
}

TEST(a_tail_that_does_not_become_a_stop_string_is_shown) {
    text_stream stream({"aab"});
    CHECK(stream.push("a") == "");
    CHECK(stream.push("a") == "");
    CHECK(stream.push("a") == "a");
    CHECK(stream.push("c") == "aac");
    CHECK(stream.push("xaa") == "x");
    CHECK(stream.finish() == "aa");
    CHECK(!stream.stopped());
}

TEST(of_stop_strings_that_end_together_the_longest_wins) {
    CHECK(run({"xabc"}, {"c", "abc", "bc"}) == "x");
    CHECK(run({"xab", "c"}, {"b", "abc"}) == "xa");
}

TEST(only_what_may_become_a_stop_string_is_held_back) {
    text_stream stream({"\n\n", "User:"});
    CHECK(stream.push("one\n") == "one");
    CHECK(stream.push("two") == "\ntwo");
    CHECK(stream.push(" User") == " ");
    CHECK(stream.push("s") == "Users");
}

TEST(an_incomplete_character_before_a_stop_string_is_replaced) {
    CHECK(run({"a\xE2\x82", "STOP"}, {"STOP"}) == "a" + bad);
}

TEST(bad_stop_strings_are_refused) {
    CHECK_THROWS(text_stream({"ok", ""}), errc::argument);
    CHECK_THROWS(text_stream({"\xE2\x82"}), errc::argument);
}

// TEST(the_promise_that_it_protects) { CHECK(a == b); CHECK_NEAR(x, 1, 1e-6); CHECK_THROWS(f(), errc::argument); }
// One executable per test-*.cpp; `test-x [SUBSTRING]` runs the tests whose name contains SUBSTRING.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "ggml_dflash2/error.h"

struct test {
    const char * name;
    void (*run)();
};

inline std::vector<test> tests;
inline int               n_checks, n_failed;  // of the running test

inline void check(bool ok, const char * file, int line, const std::string & what) {
    n_checks += 1;
    n_failed += !ok;
    if (!ok) {
        std::printf("  %s:%d: %s\n", file, line, what.c_str());
    }
}

#define TEST(name)                                                           \
    static void       name();                                                \
    static const bool name##_added = (tests.push_back({#name, name}), true); \
    static void       name()
#define CHECK(condition) check(condition, __FILE__, __LINE__, #condition)
#define CHECK_NEAR(a, b, tolerance)                                           \
    check(std::abs(double(a) - double(b)) <= (tolerance), __FILE__, __LINE__, \
          #a " is " + std::to_string(a) + ", not " + std::to_string(b))
#define CHECK_THROWS(x, expected)                                  \
    try {                                                          \
        (void) (x);                                                \
        check(false, __FILE__, __LINE__, #x " throws nothing");    \
    } catch (const dflash2::error & e) {                           \
        check(e.code() == expected, __FILE__, __LINE__, e.what()); \
    }

int main(int argc, char ** argv) {
    int n_bad = 0;
    for (const test & t : tests) {
        if (argc > 1 && std::string(t.name).find(argv[1]) == std::string::npos) {
            continue;
        }
        n_checks = n_failed = 0;
        try {
            t.run();
            check(n_checks > 0, t.name, 0, "a test checks something");
        } catch (const std::exception & e) {
            check(false, t.name, 0, e.what());
        }
        std::printf("%s %s\n", n_failed ? "FAIL" : "ok  ", t.name);
        n_bad += n_failed > 0;
    }
    return n_bad > 0;
}

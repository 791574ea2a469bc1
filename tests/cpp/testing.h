// A test harness in one header, for one executable per test-*.cpp:
//
//   TEST(the_promise_that_it_protects) { CHECK(a == b); CHECK_NEAR(x, 1.0, 1e-6); CHECK_THROWS(f(), errc::argument); }
//
// `test-x [SUBSTRING]` runs the tests whose name contains SUBSTRING. A test without a check fails.
#pragma once

#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "ggml_dflash2/error.h"

namespace testing {

struct test {
    const char * name;
    void (*run)();
};

inline std::vector<test> tests;
inline int               n_checks = 0;
inline int               n_failed = 0;

inline bool add(const char * name, void (*run)()) {
    tests.push_back({name, run});
    return true;
}

inline void check(bool ok, const char * file, int line, const std::string & what) {
    n_checks += 1;
    n_failed += !ok;
    if (!ok) {
        std::printf("  %s:%d: %s\n", file, line, what.c_str());
    }
}

}  // namespace testing

#define TEST(name)                                              \
    static void       name();                                   \
    static const bool name##_added = testing::add(#name, name); \
    static void       name()

#define CHECK(condition) testing::check(condition, __FILE__, __LINE__, #condition)

#define CHECK_NEAR(a, b, tolerance)                                                    \
    testing::check(std::abs(double(a) - double(b)) <= (tolerance), __FILE__, __LINE__, \
                   #a " = " + std::to_string(a) + ", expected " + std::to_string(b) + " +- " #tolerance)

#define CHECK_THROWS(expression, expected)                                        \
    try {                                                                         \
        (void) (expression);                                                      \
        testing::check(false, __FILE__, __LINE__, #expression " throws nothing"); \
    } catch (const dflash2::error & e) {                                          \
        testing::check(e.code() == (expected), __FILE__, __LINE__, e.what());     \
    }

int main(int argc, char ** argv) {
    int n_run = 0, n_bad = 0;
    for (const testing::test & t : testing::tests) {
        if (argc > 1 && std::string(t.name).find(argv[1]) == std::string::npos) {
            continue;
        }
        testing::n_checks = testing::n_failed = 0;
        try {
            t.run();
            testing::check(testing::n_checks > 0, t.name, 0, "checks nothing");
        } catch (const std::exception & e) {
            testing::check(false, t.name, 0, e.what());
        }
        std::printf("%s %s\n", testing::n_failed ? "FAIL" : "ok  ", t.name);
        n_run += 1;
        n_bad += testing::n_failed > 0;
    }
    std::printf("%d tests, %d failed\n", n_run, n_bad);
    return n_run == 0 || n_bad > 0;
}

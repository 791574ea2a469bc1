#include "draft/draft-cache.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "ggml.h"
#include "testing.h"

using namespace dflash2;

// An allocation beyond any machine returns null, as without sanitizers.
extern "C" __attribute__((visibility("default"))) const char * __asan_default_options() {
    return "allocator_may_return_null=1";
}

constexpr int32_t BLOCK = 6;

static draft_hparams hparams(int32_t window, std::vector<uint8_t> is_sliding) {
    draft_hparams hp;
    hp.n_layer        = (int32_t) is_sliding.size();
    hp.n_head_kv      = 2;
    hp.head_dim       = 8;
    hp.block_size     = BLOCK;
    hp.sliding_window = window;
    hp.is_sliding     = std::move(is_sliding);
    return hp;
}

static draft_cache make_cache(const draft_hparams & hp, int32_t n_ctx, int32_t n_seq = 1) {
    return draft_cache(hp, n_ctx, n_seq, GGML_TYPE_F16, ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
}

static ring_layout layout(int32_t window, int32_t n_ctx) {
    return make_cache(hparams(window, {window > 0}), n_ctx).layout(window > 0);
}

TEST(a_ring_holds_the_window_and_the_slack_in_distinct_cells) {
    for (const int32_t n_ctx : {1, 7, 100, 1000}) {
        for (const int32_t window : {0, 2, 5, 64, 300}) {
            const ring_layout l    = layout(window, n_ctx);
            const int32_t     held = window == 0 ? n_ctx : std::min(n_ctx, window - 1 + SLACK);
            CHECK(l.block == BLOCK && l.window == window && l.n_ring == held && l.n_cells % CELL_STEP == 0);
            for (const int32_t first : {0, 1, held - 1, 3 * held + 2}) {
                std::set<int32_t> cells = {l.trash()};
                for (int32_t p = first; p < first + held; ++p) {
                    const int32_t c = l.cell(p);
                    CHECK(c > l.trash() && c < l.n_cells && cells.insert(c).second);
                    CHECK(l.cell(p + held) == c);
                }
                CHECK(*cells.begin() == BLOCK);  // the block has the cells before the trash
            }
        }
    }
}

TEST(rows_of_sequences_do_not_overlap) {
    const ring_layout l = layout(5, 100);
    std::set<int64_t> rows;
    for (int32_t seq = 0; seq < 3; ++seq) {
        for (int32_t cell = 0; cell < l.n_cells; ++cell) {
            CHECK(rows.insert(l.row(seq, cell)).second);
        }
    }
    CHECK(*rows.begin() == 0 && *rows.rbegin() == 3 * (int64_t) l.n_cells - 1);
}

// Whatever is written in whatever portions, each cell ends up with the last position that belongs there.
TEST(rows_keep_the_last_position_of_every_cell) {
    for (const int32_t n_ring : {1, 3, 10, 70}) {
        const ring_layout l = {BLOCK, n_ring, 2, 128};
        for (const int32_t n_real : {0, 1, 2, 9, 10, 11, 64}) {
            for (const int32_t first : {0, 5, 1000}) {
                std::vector<int64_t> rows = {-7};
                l.add_rows(2, first, n_real, 64, rows);
                CHECK(rows.size() == 65 && rows[0] == -7);  // appends

                std::map<int64_t, int32_t> holds;
                for (int32_t i = 0; i < 64; ++i) {
                    const int64_t row = rows[i + 1];
                    CHECK(row >= l.row(2, l.trash()) && row < l.row(3, 0));  // never the block's cells
                    if (i >= n_real) {
                        CHECK(row == l.row(2, l.trash()));
                    } else if (row != l.row(2, l.trash())) {
                        CHECK(row == l.row(2, l.cell(first + i)));
                        CHECK(holds.emplace(row, first + i).second);  // the order of writes does not matter
                    }
                }
                CHECK((int32_t) holds.size() == std::min(n_real, n_ring));
                for (int32_t p = first + n_real - (int32_t) holds.size(); p < first + n_real; ++p) {
                    CHECK(holds.at(l.row(2, l.cell(p))) == p);
                }
            }
        }
    }
}

// The mask by its definition: query i (position end + i) sees context position p if begin <= p < end and p is inside
// its window, and token j of the block if both are inside the window of the other and, in a causal block, j <= i.
TEST(the_mask_is_its_definition) {
    constexpr uint16_t visible = 0x0000, hidden = 0xFC00;  // 0 and -inf in F16
    const int32_t      n_ctx = 150;
    for (const int32_t window : {0, 2, 3, 5, 6, 7, 40, 100, 400}) {
        const ring_layout l = layout(window, n_ctx);
        for (const int32_t begin : {0, 1, 30, 90}) {
            for (int32_t end = begin; end <= n_ctx; end += end < begin + 12 || end > n_ctx - 12 ? 1 : 17) {
                for (const int32_t n_query : {2, BLOCK}) {
                    for (const bool causal : {false, true}) {
                        const int32_t         n_kv = l.n_visible(begin, end);
                        std::vector<uint16_t> mask(3, 0x1234);
                        l.add_mask(begin, end, n_kv, n_query, causal, mask);

                        std::vector<uint16_t> want((size_t) n_kv * n_query, hidden);
                        bool                  covered = true;
                        for (int32_t i = 0; i < n_query; ++i) {
                            for (int32_t p = begin; p < end; ++p) {
                                if (window == 0 || end + i - p < window) {
                                    covered = covered && l.cell(p) < n_kv;
                                    want[(size_t) i * n_kv + std::min(l.cell(p), n_kv - 1)] = visible;
                                }
                            }
                            for (int32_t j = 0; j < n_query; ++j) {
                                if ((window == 0 || std::abs(i - j) < window) && (!causal || j <= i)) {
                                    want[(size_t) i * n_kv + j] = visible;
                                }
                            }
                        }
                        CHECK(covered);
                        CHECK(n_kv <= l.n_cells);
                        CHECK(mask.size() == want.size() + 3 && std::equal(want.begin(), want.end(), mask.begin() + 3));
                    }
                }
            }
        }
    }
}

// A context cell that the mask shows holds the position that it stands for, also just before it is overwritten.
TEST(no_visible_position_has_been_overwritten) {
    for (const int32_t window : {2, 5, 40}) {
        const ring_layout          l = layout(window, 4096);
        std::map<int32_t, int32_t> holds;
        for (int32_t end = 0; end < 3 * l.n_ring; ++end) {
            for (int32_t p = std::max(0, end - window + 1); p < end; ++p) {
                CHECK(holds.at(l.cell(p)) == p);
            }
            for (int32_t p = l.oldest(0, end); p < end; ++p) {
                CHECK(holds.at(l.cell(p)) == p);
            }
            CHECK(l.oldest(0, end) == std::max(0, end - l.n_ring));
            holds[l.cell(end)] = end;
        }
        CHECK(l.oldest(50, 60) == 50 && l.oldest(50, 50) == 50);
    }
}

TEST(visible_cells_grow_in_steps_up_to_the_ring) {
    const ring_layout full = layout(0, 2000);
    std::set<int32_t> seen;
    for (int32_t end = 0; end <= 2000; ++end) {
        const int32_t n = full.n_visible(0, end);
        CHECK(n >= BLOCK + 1 + end && n <= BLOCK + 1 + end + 255);
        seen.insert(n);
    }
    CHECK(seen.size() == 8);
    CHECK(full.n_visible(1, 2) == full.n_cells);  // a context that does not start at 0 may be anywhere in the ring
    CHECK(layout(40, 100000).n_visible(0, 100000) == layout(40, 100000).n_cells);
}

TEST(memory_of_sliding_layers_does_not_grow_with_the_context) {
    const size_t small = make_cache(hparams(40, {1, 1}), 1000).size_bytes();
    CHECK(make_cache(hparams(40, {1, 1}), 1000000).size_bytes() == small);
    CHECK(make_cache(hparams(40, {1, 1}), 1000000, 3).size_bytes() == 3 * small);
    CHECK(make_cache(hparams(40, {1, 0}), 10000).size_bytes() > 10000 * 16 * 2 * 2);
}

TEST(each_layer_has_the_cells_of_its_kind) {
    const draft_cache cache = make_cache(hparams(40, {1, 0}), 1000, 3);
    for (const int32_t il : {0, 1}) {
        const int64_t rows = 3 * (int64_t) cache.layout(il == 0).n_cells;
        CHECK(cache.k(il)->ne[0] == 16 && cache.k(il)->ne[1] == rows && cache.k(il)->type == GGML_TYPE_F16);
        CHECK(cache.v(il)->ne[0] == 16 && cache.v(il)->ne[1] == rows && cache.v(il)->type == GGML_TYPE_F16);
    }
    std::vector<uint8_t> data(ggml_nbytes(cache.k(1)), 1);
    ggml_backend_tensor_get(cache.k(1), data.data(), 0, data.size());
    CHECK(std::count(data.begin(), data.end(), 0) == (std::ptrdiff_t) data.size());  // hidden cells hold finite numbers
}

TEST(a_cache_beyond_memory_is_an_error) {
    ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    CHECK_THROWS(make_cache(hparams(0, {0}), 1 << 24, 1 << 23), errc::memory);
}

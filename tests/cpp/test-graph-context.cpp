// What a drafter still knows after its context was cut back.
#include "tiny-drafts.h"

constexpr int32_t SLACK = 64;  // positions that a sequence can be cut back by, see draft-cache.h

// Positions of a context are needed while some layer's window reaches them, and sliding layers hold the last
// window - 1 + SLACK of what was injected.
static bool whole(const tiny_shape & s, int32_t n_ctx, int32_t begin, int32_t high, int32_t n_keep) {
    const int32_t n_ring = std::min(std::max(1, s.window - 1) + SLACK, n_ctx);
    for (const uint8_t slides : s.sliding) {
        for (int32_t p = slides ? std::max(0, n_keep - s.window + 1) : 0; p < n_keep; ++p) {
            if (p < begin || (slides && p < high - n_ring)) {
                return false;
            }
        }
    }
    return n_keep <= high;
}

TEST(truncate_keeps_a_context_exactly_when_its_window_is_whole) {
    for (const tiny_shape & shape :
         {full, sliding, mixed, with_window(2, {1, 1}), with_window(70, {1, 1}), with_window(1000, {0, 1})}) {
        const auto model = make_model(shape);
        for (const int32_t n_ctx : {100, 400}) {
            for (const int32_t begin : {0, 3, 60}) {
                for (const int32_t end : {begin + 1, 66, 135}) {
                    if (end > n_ctx || end <= begin) {
                        continue;
                    }
                    graph_drafter d     = make_drafter(model, 1, n_ctx);
                    int32_t       first = begin;  // of the rows to inject
                    int32_t       n_bad = 0;      // refused in a row
                    for (int32_t n_keep = end + 2; n_keep >= 0; n_keep -= n_bad < 8 ? 1 : 11) {
                        inject(d, 0, 1, first, end - first);
                        draft(d, 0, end, 1);  // everything is in the rings
                        const bool kept = d.truncate(0, n_keep);
                        check(kept == whole(shape, n_ctx, begin, end, n_keep), __FILE__, __LINE__,
                              "window " + std::to_string(shape.window) + " n_ctx " + std::to_string(n_ctx) + " " +
                                  std::to_string(begin) + ".." + std::to_string(end) + " cut to " +
                                  std::to_string(n_keep) + (kept ? ": kept" : ": refused"));
                        n_bad = kept ? 0 : n_bad + 1;
                        first = kept && n_keep > 0 ? n_keep : begin;
                    }
                    CHECK(d.truncate(0, 0));
                }
            }
        }
    }
}

TEST(a_truncated_context_is_one_that_never_went_further) {
    for (const tiny_shape & shape : {full, sliding, mixed, with_window(70, {1, 1})}) {
        const auto model = make_model(shape);
        for (const int32_t end : {20, 150}) {
            for (const int32_t n_cut : {0, 1, 19, 60}) {
                const int32_t n_keep = end - n_cut;
                for (const bool drafted : {false, true}) {  // false: the last rows are still staged
                    graph_drafter d = make_drafter(model);
                    inject(d, 0, 1, 0, end);
                    if (drafted) {
                        draft(d, 0, end);
                    }
                    if (n_keep < 0) {
                        continue;
                    }
                    CHECK(d.truncate(0, n_keep));
                    CHECK_SAME(draft(d, 0, n_keep), fresh(model, 1, 0, n_keep));
                    inject(d, 0, 2, n_keep, 9);  // goes on with another text
                    const lattice got = draft(d, 0, n_keep + 9);

                    graph_drafter never = make_drafter(model);
                    inject(never, 0, 1, 0, n_keep);
                    inject(never, 0, 2, n_keep, 9);
                    CHECK_SAME(got, draft(never, 0, n_keep + 9));
                }
            }
        }
    }
}

// Cuts after cuts: what the rings hold is what was written last to each of their cells, kept or not.
TEST(cuts_and_injections_in_any_order_keep_what_is_whole) {
    struct part {
        uint32_t text;
        int32_t  first, n_rows;
    };
    for (const tiny_shape & shape : {sliding, mixed, with_window(30, {1, 1})}) {
        const auto           model  = make_model(shape);
        const int32_t        n_ring = shape.window - 1 + SLACK;
        std::mt19937         rng(7);
        graph_drafter        d = make_drafter(model);
        std::vector<part>    parts;
        std::vector<int32_t> ring(n_ring, -1);  // position in each cell
        int32_t              end = 0, n_kept = 0, n_refused = 0;
        for (uint32_t step = 1; step <= 120; ++step) {
            const int32_t n_rows = std::min<int32_t>(rng() % (step % 8 ? 30 : 150), 512 - end);
            parts.push_back({step, end, n_rows});
            inject(d, 0, step, end, n_rows);
            for (int32_t i = 0; i < n_rows; ++i, ++end) {
                ring[end % n_ring] = end;
            }
            draft(d, 0, end);

            const int32_t n_keep = std::max<int32_t>(1, end - (int32_t) (rng() % 50));
            bool          holds  = n_keep <= end;
            for (int32_t p = std::max(0, n_keep - shape.window + 1); p < n_keep; ++p) {
                holds = holds && ring[p % n_ring] == p;
            }
            const bool kept = d.truncate(0, n_keep);
            CHECK(kept == holds);
            (kept ? n_kept : n_refused)++;
            end = kept ? n_keep : 0;
            while (!parts.empty() && parts.back().first >= end) {
                parts.pop_back();
            }
            if (!parts.empty()) {
                parts.back().n_rows = std::min(parts.back().n_rows, end - parts.back().first);
            }
            graph_drafter straight = make_drafter(model);
            for (const part & p : parts) {
                inject(straight, 0, p.text, p.first, p.n_rows);
            }
            CHECK_SAME(draft(d, 0, end), draft(straight, 0, end));
        }
        CHECK(n_kept > 40 && n_refused > 4);
    }
}

TEST(a_context_that_was_dropped_is_forgotten) {
    for (const tiny_shape & shape : {full, sliding, mixed}) {
        const auto    model = make_model(shape);
        graph_drafter d     = make_drafter(model);
        inject(d, 0, 1, 0, 150);
        draft(d, 0, 150);
        CHECK(d.truncate(0, 0));
        CHECK_SAME(draft(d, 0, 0), fresh(model, 2, 0, 0));
        inject(d, 0, 2, 0, 30);
        CHECK_SAME(draft(d, 0, 30), fresh(model, 2, 0, 30));
        CHECK(!d.truncate(0, 31) && !d.truncate(0, -1));
        CHECK_SAME(draft(d, 0, 0), fresh(model, 2, 0, 0));
        CHECK(d.truncate(0, 0));
    }
}

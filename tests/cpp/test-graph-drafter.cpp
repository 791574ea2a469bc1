// What a draft may depend on: the sequence's own context inside the window, and nothing else.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <memory>
#include <numeric>

#if defined(__SANITIZE_ADDRESS__)
extern "C" size_t __sanitizer_get_current_allocated_bytes();
#elif defined(__GLIBC__)
#include <malloc.h>
#endif

#include "ggml_dflash2/graph-drafter.h"
#include "testing.h"
#include "tiny-drafter.h"

using namespace dflash2;

constexpr int32_t SLACK = 64;  // positions that a sequence can be cut back by, see draft-cache.h
constexpr int32_t BLOCK = 6, N_EMBD = 32, N_VOCAB = 96;

// -- what the tests share

static tiny_shape with_window(int32_t window, std::vector<uint8_t> sliding) {
    tiny_shape s;
    s.window  = window;
    s.sliding = std::move(sliding);
    return s;
}

static const tiny_shape full = with_window(0, {0, 0}), sliding = with_window(5, {1, 1}), mixed = with_window(9, {1, 0});

static std::shared_ptr<const draft_model> make_model(const tiny_shape & shape) {
    silence_ggml();
    return std::make_shared<const draft_model>(temp_file(tiny_file(shape).content()).path());
}

static graph_drafter_params params(int32_t n_seq = 1, int32_t n_ctx = 512) {
    return {n_ctx, n_seq, /*n_threads =*/1, /*kv_f32 =*/true};
}

static graph_drafter make_drafter(std::shared_ptr<const draft_model> model, int32_t n_seq = 1, int32_t n_ctx = 512) {
    return graph_drafter(std::move(model), {}, params(n_seq, n_ctx));
}

// Hidden states of a text: a function of the text's number and the position.
static void inject(drafter & d, int32_t seq, uint32_t text, int32_t first, int32_t n_rows) {
    const size_t                    n_taps = d.target_layers().size();
    std::vector<std::vector<float>> taps(n_taps);
    std::normal_distribution<float> law;
    for (int32_t i = 0; i < n_rows; ++i) {
        std::mt19937 rng(text * 1000003 + (uint32_t) (first + i));
        law.reset();
        for (std::vector<float> & tap : taps) {
            std::generate_n(std::back_inserter(tap), N_EMBD, [&] { return law(rng); });
        }
    }
    features f;
    f.n_embd   = N_EMBD;
    f.n_rows   = n_rows;
    f.position = first;
    for (const std::vector<float> & tap : taps) {
        f.tap.push_back(tap.data());
    }
    d.inject(seq, f);
}

static lattice draft(drafter & d, int32_t seq, int32_t position, int32_t n_draft = BLOCK - 1, token_id anchor = 17) {
    return d.draft({{seq, anchor, position}}, n_draft)[0];
}

// A drafter of its own that got positions begin .. end - 1 of a text at once.
static lattice fresh(std::shared_ptr<const draft_model> model, uint32_t text, int32_t begin, int32_t end,
                     int32_t n_draft = BLOCK - 1, token_id anchor = 17) {
    graph_drafter d = make_drafter(std::move(model));
    inject(d, 0, text, begin, end - begin);
    return draft(d, 0, end, n_draft, anchor);
}

// Largest difference of two lattices' scores over the largest score; infinite when the candidates are not the same.
static double difference(const lattice & a, const lattice & b) {
    if (a.top_k != b.top_k || a.n_pos != b.n_pos || a.score.size() != b.score.size()) {
        return INFINITY;
    }
    const int32_t K    = a.top_k;
    const auto    rank = [K](const lattice & lat, int32_t pos) {
        std::vector<int32_t> order(K);
        std::iota(order.begin(), order.end(), 0);
        std::sort(order.begin(), order.end(),
                     [&](int32_t i, int32_t j) { return lat.cand[pos * K + i] < lat.cand[pos * K + j]; });
        return order;
    };
    double               worst = 0.0, largest = 0.0;
    std::vector<int32_t> from_a(K), from_b(K);
    for (int32_t pos = 0; pos < a.n_pos; ++pos) {
        const std::vector<int32_t> to_a = rank(a, pos), to_b = rank(b, pos);
        for (int32_t i = 0; i < K; ++i) {
            if (a.cand[pos * K + to_a[i]] != b.cand[pos * K + to_b[i]]) {
                return INFINITY;
            }
            for (int32_t j = 0; j < (pos ? K : 1); ++j) {
                const float x = a.score[(pos * K + from_a[j]) * K + to_a[i]];
                const float y = b.score[(pos * K + from_b[j]) * K + to_b[i]];
                worst         = std::max(worst, std::isfinite(x - y) ? (double) std::abs(x - y) : INFINITY);
                largest       = std::max(largest, (double) std::abs(x));
            }
        }
        from_a = to_a;
        from_b = to_b;
    }
    return worst / largest;
}

#define CHECK_SAME(a, b) CHECK_NEAR(difference(a, b), 0.0, 1e-5)
#define CHECK_OTHER(a, b) CHECK(difference(a, b) > 1e-3)

// -- tests

TEST(a_lattice_is_one_that_walks_can_trust) {
    for (const tiny_shape & shape : {full, sliding, mixed}) {
        const auto model = make_model(shape);
        for (const int32_t n_context : {0, 1, 30}) {
            const lattice lat = fresh(model, 1, 0, n_context);
            validate(lat, N_VOCAB);
            CHECK(lat.top_k == 4 && lat.n_pos == BLOCK - 1);
            for (const float s : lat.score) {
                CHECK(std::isfinite(s));
            }
        }
        CHECK_OTHER(fresh(model, 1, 0, 30), fresh(model, 2, 0, 30));                             // reads the context
        CHECK_OTHER(fresh(model, 1, 0, 30), fresh(model, 1, 0, 30, BLOCK - 1, /*anchor =*/18));  // and the anchor
    }
}

// Rounds over four sequences with texts, lengths and turns of their own; each draft must be that of a drafter which
// has never seen another sequence.
TEST(sequences_do_not_see_each_other) {
    for (const tiny_shape & shape : {full, sliding, mixed}) {
        const auto                model = make_model(shape);
        std::mt19937              rng(3);
        graph_drafter             together = make_drafter(model, 4);
        std::deque<graph_drafter> alone;
        std::vector<int32_t>      length(4, 0);
        for (int32_t seq = 0; seq < 4; ++seq) {
            alone.emplace_back(model, shared_tensors{}, params(1));
        }
        for (int32_t round = 0; round < 40; ++round) {
            std::vector<draft_job> jobs;
            for (int32_t seq = 0; seq < 4; ++seq) {
                if (round == 0 || rng() % 3) {  // also sequences that do not draft in this round
                    const int32_t n = round == 0 ? 1 + 100 * (3 * seq % 4) : (int32_t) (rng() % (BLOCK + 1));
                    inject(together, seq, 1 + seq, length[seq], n);
                    inject(alone[seq], 0, 1 + seq, length[seq], n);
                    length[seq] += n;
                }
                if (rng() % 2) {
                    jobs.push_back({seq, (token_id) (rng() % N_VOCAB), length[seq]});
                }
            }
            std::shuffle(jobs.begin(), jobs.end(), rng);
            if (jobs.empty()) {
                continue;
            }
            const int32_t              n_draft = round % 4 ? BLOCK - 1 : 2;
            const std::vector<lattice> lats    = together.draft(jobs, n_draft);
            CHECK(lats.size() == jobs.size());
            for (size_t i = 0; i < jobs.size(); ++i) {
                const draft_job & job  = jobs[i];
                const lattice     want = draft(alone[job.seq], 0, job.position, n_draft, job.anchor);
                CHECK_SAME(lats[i], want);
                const std::vector<float> a = together.last_hidden(job.seq), b = alone[job.seq].last_hidden(0);
                CHECK(a.size() == (size_t) N_EMBD * n_draft && a.size() == b.size());
                for (size_t j = 0; j < a.size(); ++j) {
                    if (std::abs(a[j] - b[j]) > 1e-4f) {
                        CHECK_NEAR(a[j], b[j], 1e-4);
                    }
                }
            }
            if (round % 10 == 9) {  // one sequence starts again
                const int32_t seq = (int32_t) (rng() % 4);
                CHECK(together.truncate(seq, 0) && alone[seq].truncate(0, 0));
                length[seq] = 0;
            }
        }
    }
}

TEST(the_portions_of_injection_do_not_matter) {
    for (const tiny_shape & shape : {full, sliding, mixed}) {
        const auto    model = make_model(shape);
        const lattice want  = fresh(model, 1, 0, 200);
        for (const int32_t portion : {1, 7, 63, 64, 65, 199}) {
            graph_drafter d = make_drafter(model);
            for (int32_t p = 0; p < 200; p += portion) {
                inject(d, 0, 1, p, std::min(portion, 200 - p));
                inject(d, 0, 1, std::min(p + portion, 200), 0);  // no rows: nothing
            }
            CHECK_SAME(draft(d, 0, 200), want);
        }
        graph_drafter d = make_drafter(model);  // with drafts in between
        for (int32_t p = 0; p < 200; p += 5) {
            inject(d, 0, 1, p, 5);
            draft(d, 0, p + 5, 1 + p % (BLOCK - 1));
        }
        CHECK_SAME(draft(d, 0, 200), want);
        CHECK_SAME(draft(d, 0, 200), want);  // and a draft leaves nothing behind
    }
}

// ggml keeps Q4_0 in another order for its kernels of several rows.
TEST(quantized_matrices_draft_what_their_rounded_numbers_draft) {
    tiny_shape shape  = sliding;
    shape.n_ff        = 64;
    shape.rank        = 32;
    shape.matrix_type = GGML_TYPE_Q4_0;
    tiny_file quantized(shape), rounded(shape);
    for (tiny_tensor & t : rounded.tensors) {
        if (t.type == GGML_TYPE_Q4_0) {
            const bytes packed = t.data;
            t.type             = GGML_TYPE_F32;
            t.data.resize((size_t) (t.ne[0] * t.ne[1]) * sizeof(float));
            ggml_get_type_traits(GGML_TYPE_Q4_0)->to_float(packed.data(), (float *) t.data.data(), t.ne[0] * t.ne[1]);
        }
    }
    graph_drafter a = make_drafter(std::make_shared<draft_model>(temp_file(quantized.content()).path()));
    graph_drafter b = make_drafter(std::make_shared<draft_model>(temp_file(rounded.content()).path()));
    int32_t       n = 0;
    for (const int32_t n_rows : {65, 1, 4, 5, 6, 17}) {
        for (int32_t n_draft = 1; n_draft < BLOCK; ++n_draft) {
            for (drafter * d : {(drafter *) &a, (drafter *) &b}) {
                inject(*d, 0, 1, n, n_rows);
                draft(*d, 0, n + n_rows, n_draft);
            }
            n += n_rows;
            const std::vector<float> x = a.last_hidden(0), y = b.last_hidden(0);
            double                   error = 0.0, sum = 0.0;
            for (size_t i = 0; i < x.size(); ++i) {
                error += (x[i] - y[i]) * (x[i] - y[i]);
                sum += y[i] * y[i];
            }
            CHECK_NEAR(std::sqrt(error / sum), 0.0, 0.3);  // ggml rounds activations to 8 bits; chance gives 1.4
        }
    }
}

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

TEST(sliding_layers_see_the_window_and_no_more) {
    for (const int32_t window : {2, 5, 40}) {
        const auto model = make_model(with_window(window, {1, 1}));
        for (const int32_t end : {50, 200}) {
            const lattice want = fresh(model, 1, 0, end);
            const auto    with = [&](int32_t n_other) {  // the first positions are those of another text
                graph_drafter d = make_drafter(model);
                inject(d, 0, 2, 0, n_other);
                inject(d, 0, 1, n_other, end - n_other);
                return draft(d, 0, end);
            };
            const int32_t oldest = end - (window - 1);  // that the anchor sees
            CHECK_SAME(with(oldest), want);
            CHECK(difference(with(oldest + 1), want) > 1e-5);
            CHECK_SAME(fresh(model, 1, oldest, end), want);  // nor need they be injected
        }
        CHECK(make_drafter(model).context_window() >= window - 1);
    }
    CHECK(make_drafter(make_model(mixed)).context_window() == 0);
    CHECK(make_drafter(make_model(full)).context_window() == 0);

    const auto    model = make_model(mixed);  // one full layer sees everything
    graph_drafter d     = make_drafter(model);
    inject(d, 0, 2, 0, 1);
    inject(d, 0, 1, 1, 199);
    CHECK(difference(draft(d, 0, 200), fresh(model, 1, 0, 200)) > 1e-5);
}

// In a causal block the first positions do not depend on how many follow.
TEST(every_width_drafts) {
    for (const bool causal : {false, true}) {
        tiny_file tiny(mixed);
        gguf_set_val_bool(tiny.kv(), schema::KEY_CAUSAL, causal);
        const auto    model = std::make_shared<const draft_model>(temp_file(tiny.content()).path());
        const lattice wide  = fresh(model, 1, 0, 20);
        for (int32_t n = 1; n < BLOCK; ++n) {
            const lattice lat = fresh(model, 1, 0, 20, n);
            validate(lat, N_VOCAB);
            CHECK(lat.n_pos == n && lat.score.size() == (size_t) (4 * 4 * n));
            lattice first = wide;
            first.n_pos   = n;
            first.cand.resize((size_t) 4 * n);
            first.score.resize((size_t) 4 * 4 * n);
            CHECK((difference(lat, first) < 1e-5) == (causal || n == BLOCK - 1));

            graph_drafter d = make_drafter(model);  // a width after others
            inject(d, 0, 1, 0, 20);
            draft(d, 0, 20, BLOCK - 1, 3);
            CHECK_SAME(draft(d, 0, 20, n), lat);
        }
    }
}

TEST(a_full_context_is_an_error_and_changes_nothing) {
    for (const tiny_shape & shape : {full, sliding}) {
        const auto    model = make_model(shape);
        graph_drafter d     = make_drafter(model, 1, 50);
        CHECK_THROWS(inject(d, 0, 1, 0, 51), errc::context_full);
        CHECK_THROWS(inject(d, 0, 1, 50, 1), errc::context_full);
        CHECK_THROWS(inject(d, 0, 1, INT32_MAX, 1), errc::context_full);
        inject(d, 0, 1, 0, 50);
        CHECK_THROWS(inject(d, 0, 1, 50, 1), errc::context_full);
        CHECK_SAME(draft(d, 0, 50), fresh(model, 1, 0, 50));
    }
}

TEST(wrong_arguments_are_errors_and_change_nothing) {
    const auto    model = make_model(mixed);
    graph_drafter d     = make_drafter(model, 2);
    inject(d, 0, 1, 0, 20);
    const lattice want = draft(d, 0, 20);
    inject(d, 1, 2, 0, 7);
    const lattice other = draft(d, 1, 7);

    CHECK_THROWS(inject(d, 0, 1, 19, 1), errc::argument);  // overlap
    CHECK_THROWS(inject(d, 0, 1, 21, 1), errc::argument);  // gap
    CHECK_THROWS(inject(d, 0, 1, -1, 1), errc::argument);
    CHECK_THROWS(inject(d, 2, 1, 0, 1), errc::argument);
    CHECK_THROWS(inject(d, -1, 1, 0, 1), errc::argument);
    features                 f;
    const std::vector<float> rows(N_EMBD);
    f.n_embd   = N_EMBD;
    f.n_rows   = 1;
    f.position = 20;
    CHECK_THROWS(d.inject(0, f), errc::argument);  // no taps
    f.tap.assign(3, rows.data());
    CHECK_THROWS(d.inject(0, f), errc::argument);
    f.tap.resize(2);
    f.n_embd = N_EMBD - 1;
    CHECK_THROWS(d.inject(0, f), errc::argument);
    f.n_embd = N_EMBD;
    for (const int32_t n_rows : {-1, -20, INT32_MIN}) {
        f.n_rows = n_rows;
        CHECK_THROWS(d.inject(0, f), errc::argument);
    }

    CHECK_THROWS(draft(d, 0, 19), errc::argument);
    CHECK_THROWS(draft(d, 0, 21), errc::argument);
    CHECK_THROWS(draft(d, 2, 0), errc::argument);
    CHECK_THROWS(draft(d, -1, 0), errc::argument);
    for (const int32_t n_draft : {0, -1, BLOCK, INT32_MAX, INT32_MIN}) {
        CHECK_THROWS(draft(d, 0, 20, n_draft), errc::argument);
    }
    for (const token_id anchor : {-1, N_VOCAB, INT32_MAX, INT32_MIN}) {
        CHECK_THROWS(draft(d, 0, 20, 1, anchor), errc::argument);
    }
    CHECK_THROWS(d.draft({}, 1), errc::argument);
    CHECK_THROWS(d.draft({{0, 1, 20}, {0, 1, 20}}, 1), errc::argument);
    CHECK_THROWS(d.draft({{0, 1, 20}, {1, 1, 6}}, 1), errc::argument);
    CHECK_THROWS(d.truncate(2, 0), errc::argument);
    CHECK_THROWS(d.truncate(-1, 0), errc::argument);
    CHECK_THROWS(d.last_hidden(2), errc::argument);
    CHECK_THROWS(d.last_hidden(-1), errc::argument);

    const std::vector<lattice> lats = d.draft({{1, 17, 7}, {0, 17, 20}}, BLOCK - 1);
    CHECK_SAME(lats[0], other);
    CHECK_SAME(lats[1], want);
}

TEST(a_draft_without_context_stands_inside_n_ctx) {
    const auto    model = make_model(mixed);
    graph_drafter d     = make_drafter(model, 2, 50);
    for (const int32_t position : {-1, INT32_MIN, 51, INT32_MAX}) {
        CHECK_THROWS(draft(d, 0, position), errc::argument);
    }
    const lattice want = fresh(model, 1, 0, 0);
    CHECK(difference(draft(d, 0, 50), want) < 1e-4);  // only distances between positions matter
    inject(d, 0, 1, 3, 1);                            // still empty: may begin anywhere
    CHECK(!d.truncate(0, 4));                         // but its window is not whole
}

TEST(hidden_states_are_those_of_the_last_draft) {
    graph_drafter d = make_drafter(make_model(mixed), 3);
    CHECK_THROWS(d.last_hidden(0), errc::argument);  // nothing drafted yet
    d.draft({{1, 1, 0}}, 2);
    CHECK(d.last_hidden(1).size() == 2 * N_EMBD);
    CHECK_THROWS(d.last_hidden(0), errc::argument);  // computed along, but not drafted
    CHECK_THROWS(d.last_hidden(2), errc::argument);
}

TEST(parameters_and_pairs_that_do_not_fit_are_refused) {
    const auto model = make_model(mixed);
    const auto make  = [&](const graph_drafter_params & p) { return graph_drafter(model, {}, p).n_embd(); };
    CHECK(make({16, 1, 1, false}) == N_EMBD);
    CHECK_THROWS(make({0, 1, 1, false}), errc::argument);
    CHECK_THROWS(make({-1, 1, 1, false}), errc::argument);
    CHECK_THROWS(make({16, 0, 1, false}), errc::argument);
    CHECK_THROWS(make({16, 1, 0, false}), errc::argument);
    CHECK_THROWS(make({INT32_MAX, 1, 1, false}), errc::argument);

    tiny_file headless(mixed);
    headless.drop(schema::OUTPUT);
    headless.drop(schema::TOKEN_EMBD);
    const auto needs_target = std::make_shared<const draft_model>(temp_file(headless.content()).path());
    CHECK_THROWS(make_drafter(needs_target), errc::incompatible);

    // The same tensors from elsewhere give the same drafts.
    const tiny_file        donor(mixed);
    const ggml_context_ptr ctx(ggml_init({1 << 20, nullptr, /*no_alloc =*/true}));
    ggml_backend_dev_t     cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    shared_tensors         shared;
    shared.tok_embd                      = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, N_EMBD, N_VOCAB);
    shared.output                        = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, N_EMBD, N_VOCAB);
    ggml_tensor *                 narrow = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, N_EMBD, N_VOCAB - 1);
    const ggml_backend_buffer_ptr buffer(
        ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_dev_buffer_type(cpu)));
    for (const tiny_tensor & t : donor.tensors) {
        if (t.name == schema::TOKEN_EMBD || t.name == schema::OUTPUT) {
            ggml_tensor * to = t.name == schema::OUTPUT ? shared.output : shared.tok_embd;
            ggml_backend_tensor_set(to, t.data.data(), 0, t.data.size());
        }
    }
    graph_drafter d(needs_target, shared, params());
    inject(d, 0, 1, 0, 20);
    CHECK_SAME(draft(d, 0, 20), fresh(model, 1, 0, 20));
    shared.output = narrow;
    CHECK_THROWS(graph_drafter(needs_target, shared, params()), errc::incompatible);
}

static size_t allocated_bytes() {
#if defined(__SANITIZE_ADDRESS__)
    return __sanitizer_get_current_allocated_bytes();
#elif defined(__GLIBC__)
    const struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
#else
    return 0;
#endif
}

// Every width, number of sequences and length of context has a graph of its own; only a few are kept.
TEST(memory_does_not_grow_with_rounds) {
    const auto model      = make_model(mixed);
    const auto inject_all = [](drafter & d, int32_t first, int32_t n_rows) {
        for (int32_t seq = 0; seq < 3; ++seq) {
            inject(d, seq, 1 + seq, first, n_rows);
        }
    };
    size_t largest = 0;  // graph of the rounds below
    {
        graph_drafter d = make_drafter(model, 3, 2000);
        inject_all(d, 0, 600);
        const size_t before = allocated_bytes();
        d.draft({{0, 1, 600}, {1, 1, 600}, {2, 1, 600}}, BLOCK - 1);
        largest = allocated_bytes() - before;
    }

    graph_drafter d     = make_drafter(model, 3, 2000);
    const size_t  start = allocated_bytes(), cache = d.cache_bytes();
    size_t        early = 0, late = 0;
    for (int32_t round = 0; round < 200; ++round) {
        const int32_t first = 6 * (round % 100), end = first + 6;
        if (first == 0) {  // the second hundred does what the first did
            for (int32_t seq = 0; seq < 3; ++seq) {
                d.truncate(seq, 0);
            }
        }
        inject_all(d, first, 6);
        std::vector<draft_job> jobs;
        for (int32_t seq = 0; seq <= round % 3; ++seq) {
            jobs.push_back({seq, 1, end});
        }
        d.draft(jobs, 1 + round % (BLOCK - 1));
        size_t & most = round < 100 ? early : late;
        most          = std::max(most, allocated_bytes());
    }
    CHECK(d.cache_bytes() == cache);
    CHECK(early <= start + 14 * largest);
    CHECK(late <= early + 4096);
}

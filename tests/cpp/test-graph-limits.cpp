// What a drafter refuses, and the memory that it takes.
#include <cstdlib>  // defines __GLIBC__

#if defined(__SANITIZE_ADDRESS__)
extern "C" size_t __sanitizer_get_current_allocated_bytes();
#elif defined(__GLIBC__)
#include <malloc.h>
#endif

#include "tiny-drafts.h"

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

static size_t graph_bytes(const graph_drafter & d) {
    size_t sum = 0;
    for (const memory_use & use : d.memory()) {
        sum += use.what == "draft graphs" ? use.bytes : 0;
    }
    return sum;
}

// In the end all graphs that are kept are drafts, each a step of the context shorter than the one before.
TEST(graphs_never_take_more_than_their_plan) {
    constexpr int32_t n_seq = 4, n_step = 250, n_ctx = 13 * n_step;
    tiny_shape        wide = full;
    wide.n_vocab           = 20000;
    silence_ggml();
    const temp_file file(tiny_file(wide).content());
    const auto      open = [&](bool plan_only) {
        return graph_drafter(std::make_shared<const draft_model>(file.path(), "", plan_only), {}, params(n_seq, n_ctx));
    };
    const size_t  planned = graph_bytes(open(true));
    graph_drafter d       = open(false);
    size_t        most    = 0;
    for (int32_t seq = 0; seq < n_seq; ++seq) {
        inject(d, seq, 1, 0, n_ctx);
    }
    for (int32_t end = n_ctx; end > 0; end -= n_step) {
        std::vector<draft_job> jobs;
        for (int32_t seq = 0; seq < n_seq; ++seq) {
            CHECK(d.truncate(seq, end));
            jobs.push_back({seq, 17, end});
        }
        d.draft(jobs, BLOCK - 1);
        most = std::max(most, graph_bytes(d));
    }
    CHECK(most <= planned);
    CHECK(most > planned / 10 * 9);
}

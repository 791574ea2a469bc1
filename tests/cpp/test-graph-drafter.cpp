// What a draft may depend on: the sequence's own context inside the window, and nothing else.
#include <deque>

#include "tiny-drafts.h"

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

// Keys and tensors of a drafter file: everything that a draft depends on is there and fits, or the file is refused.
#include "ggml_dflash2/draft-model.h"

#include <algorithm>
#include <functional>

#include "draft/schema.h"
#include "ggml_dflash2/graph-drafter.h"
#include "testing.h"
#include "tiny-drafter.h"

using namespace dflash2;
using namespace dflash2::schema;

// Sanitizers end the test when a file makes us ask for more than any of these files needs.
extern "C" __attribute__((visibility("default"))) const char * __asan_default_options() {
    return "max_allocation_size_mb=64";
}

static const tiny_shape small = {1, 16, 16, 2, 1, 8, 24, 4, 2, 8, 4, 2, {1, 3}, 4, {1}};

using spoiler = std::function<void(tiny_file &)>;

// A spoiled file is refused with errc::format and a message that has the path and `part`.
static void refused(const std::string & part, const spoiler & spoil, const std::string & name = "") {
    tiny_file tiny(small);
    spoil(tiny);
    const temp_file file(tiny.content());
    std::string     message = "(nothing)";
    try {
        const draft_model model(file.path());
    } catch (const error & e) {
        message = e.what();
        check(e.code() == errc::format, __FILE__, __LINE__, name + ": format, not: " + message);
    }
    check(message.find(file.path()) == 0 && message.find(part) != std::string::npos, __FILE__, __LINE__,
          name + ": expected \"" + part + "\" in: " + message);
}

static std::unique_ptr<draft_model> load(const spoiler & spoil) {
    tiny_file tiny(small);
    spoil(tiny);
    return std::make_unique<draft_model>(temp_file(tiny.content()).path());
}

static std::vector<lattice> draft_once(std::shared_ptr<const draft_model> model) {
    const draft_hparams & hp = model->hparams();
    graph_drafter         d(model, {}, {/*n_ctx =*/16, /*n_seq =*/1, /*n_threads =*/1, /*kv_f32 =*/false});
    std::vector<float>    rows((size_t) hp.n_embd * 3, 0.5f);
    features              f;
    f.tap.assign(hp.target_layers.size(), rows.data());
    f.n_embd = hp.n_embd;
    f.n_rows = 3;
    d.inject(0, f);
    return d.draft({{0, 1, 3}}, d.max_draft());
}

TEST(a_model_has_what_its_file_says) {
    silence_ggml();
    const auto            model = load([](tiny_file &) {});
    const draft_hparams & hp    = model->hparams();
    CHECK(hp.n_layer == 1 && hp.n_embd == 16 && hp.n_ff == 16 && hp.n_head == 2 && hp.n_head_kv == 1);
    CHECK(hp.head_dim == 8 && hp.n_rot == 8 && hp.n_vocab == 24 && hp.n_ctx_train == 4096);
    CHECK(hp.rms_eps == 1e-6f && hp.rope_freq_base == 1e4f && hp.logit_scale == 2.0f);
    CHECK(hp.logit_softcap == 20.0f && hp.embedding_scale == 1.5f && !hp.causal);
    CHECK(hp.sliding_window == 4 && hp.is_sliding == std::vector<uint8_t>{1} && hp.context_window() == 3);
    CHECK(hp.block_size == 4 && hp.conv_kernel_size == 2 && hp.conv_group_size == 8);
    CHECK(hp.selector_rank == 4 && hp.selector_top_k == 2 && hp.mask_token_id == 23);
    CHECK((hp.target_layers == std::vector<int32_t>{1, 3}));
    CHECK(model->pairing().target_name == "tiny" && model->pairing().target_n_layer == 4);
    CHECK(model->pairing().vocab_hash == 0x123456789abcdef0);
    CHECK(model->has_head() && model->has_embd());
    size_t n_bytes = 0;
    for (const tiny_tensor & t : tiny_file(small).tensors) {
        n_bytes += t.data.size();
    }
    CHECK(model->size_bytes() >= n_bytes);
}

TEST(what_may_be_absent_has_its_default) {
    silence_ggml();
    const auto            model = load([](tiny_file & f) {
        for (const char * key :
             {KEY_CONTEXT_LENGTH, KEY_ROPE_DIM, KEY_LOGIT_SCALE, KEY_LOGIT_SOFTCAP, KEY_EMBD_SCALE, KEY_CAUSAL,
              KEY_WINDOW, KEY_WINDOW_PATTERN, KEY_TARGET_NAME, KEY_TARGET_N_LAYER, KEY_TARGET_VOCAB_HASH}) {
            CHECK(gguf_remove_key(f.kv(), key) >= 0);
        }
        f.drop(TOKEN_EMBD);
        f.drop(OUTPUT);
    });
    const draft_hparams & hp    = model->hparams();
    CHECK(hp.n_rot == hp.head_dim && hp.n_ctx_train == 0 && !hp.causal);
    CHECK(hp.logit_scale == 1.0f && hp.logit_softcap == 0.0f && hp.embedding_scale == 1.0f);
    CHECK(hp.sliding_window == 0 && hp.is_sliding == std::vector<uint8_t>{0} && hp.context_window() == 0);
    CHECK(model->pairing().target_name.empty() && model->pairing().target_n_layer == 0);
    CHECK(model->pairing().vocab_hash == 0);
    CHECK(!model->has_head() && !model->has_embd());
}

TEST(devices_are_known_by_name) {
    const temp_file file(tiny_file(small).content());
    CHECK(draft_model(file.path(), "CPU").path() == file.path());
    CHECK_THROWS(draft_model(file.path(), "CPU7"), errc::argument);
}

TEST(other_files_are_refused_by_name) {
    silence_ggml();
    refused("general.architecture: expected \"dflash\", got \"llama\"; this is not a DFlash drafter",
            [](tiny_file & f) { gguf_set_val_str(f.kv(), KEY_ARCHITECTURE, "llama"); });
    refused("general.architecture: expected \"dflash\", got nothing",
            [](tiny_file & f) { gguf_remove_key(f.kv(), KEY_ARCHITECTURE); });
    refused("general.architecture: expected a string",
            [](tiny_file & f) { gguf_set_val_u32(f.kv(), KEY_ARCHITECTURE, 1); });
    refused("DFlash 1", [](tiny_file & f) { f.drop(SEL_HIDDEN); });
    refused("DSpark", [](tiny_file & f) { f.tensors.push_back({MARKOV, GGML_TYPE_F32, {8}, bytes(32)}); });
    for (const char * key : UNSUPPORTED_KEYS) {
        refused(std::string("key ") + key + " is not supported",
                [&](tiny_file & f) { gguf_set_val_f32(f.kv(), key, 1.0f); });
    }
    refused("no selector_hidden.weight", [](tiny_file & f) { f.tensors.clear(); });
}

struct wrong_value {
    gguf_type    type;
    const char * name;
    void (*set)(gguf_context * kv, const char * key);
};

static const std::vector<wrong_value> values = {
    {GGUF_TYPE_INT32, "i32", [](gguf_context * kv, const char * key) { gguf_set_val_i32(kv, key, 2); }},
    {GGUF_TYPE_FLOAT32, "f32", [](gguf_context * kv, const char * key) { gguf_set_val_f32(kv, key, 2.0f); }},
    {GGUF_TYPE_FLOAT64, "f64", [](gguf_context * kv, const char * key) { gguf_set_val_f64(kv, key, 2.0); }},
    {GGUF_TYPE_BOOL, "bool", [](gguf_context * kv, const char * key) { gguf_set_val_bool(kv, key, true); }},
    {GGUF_TYPE_STRING, "str", [](gguf_context * kv, const char * key) { gguf_set_val_str(kv, key, "2"); }},
    {GGUF_TYPE_ARRAY, "array of f32",
     [](gguf_context * kv, const char * key) {
         const float v[] = {1.0f, 3.0f};
         gguf_set_arr_data(kv, key, GGUF_TYPE_FLOAT32, v, 2);
     }},
    {GGUF_TYPE_ARRAY, "array of str",
     [](gguf_context * kv, const char * key) {
         const char * v[] = {"1", "3"};
         gguf_set_arr_str(kv, key, v, 2);
     }},
    {GGUF_TYPE_ARRAY, "empty array",
     [](gguf_context * kv, const char * key) { gguf_set_arr_data(kv, key, GGUF_TYPE_INT64, key, 0); }},
};

// Every type but the key's own is refused, and so is its absence when `required`.
static void expect_type(const char * key, gguf_type own, bool required) {
    const std::string part = std::string("key ") + key;
    for (const wrong_value & v : values) {
        if (v.type != own || own == GGUF_TYPE_ARRAY) {
            refused(part, [&](tiny_file & f) { v.set(f.kv(), key); }, v.name);
        }
    }
    if (required) {
        refused(part, [&](tiny_file & f) { gguf_remove_key(f.kv(), key); }, "missing");
    }
}

TEST(every_key_has_its_type) {
    silence_ggml();
    for (const char * key :
         {KEY_N_LAYER, KEY_N_EMBD, KEY_N_FF, KEY_N_HEAD, KEY_N_HEAD_KV, KEY_KEY_LENGTH, KEY_VALUE_LENGTH,
          KEY_BLOCK_SIZE, KEY_CONV_KERNEL, KEY_CONV_GROUP, KEY_SELECTOR_RANK, KEY_SELECTOR_TOP_K, KEY_MASK_TOKEN}) {
        expect_type(key, GGUF_TYPE_INT32, true);
    }
    for (const char * key : {KEY_CONTEXT_LENGTH, KEY_ROPE_DIM, KEY_WINDOW, KEY_TARGET_N_LAYER}) {
        expect_type(key, GGUF_TYPE_INT32, false);
    }
    for (const char * key : {KEY_RMS_EPS, KEY_ROPE_BASE}) {
        expect_type(key, GGUF_TYPE_FLOAT32, true);
    }
    for (const char * key : {KEY_LOGIT_SCALE, KEY_LOGIT_SOFTCAP, KEY_EMBD_SCALE}) {
        expect_type(key, GGUF_TYPE_FLOAT32, false);
    }
    expect_type(KEY_CAUSAL, GGUF_TYPE_BOOL, false);
    expect_type(KEY_TARGET_NAME, GGUF_TYPE_STRING, false);
    expect_type(KEY_TARGET_VOCAB_HASH, GGUF_TYPE_UINT64, false);
    expect_type(KEY_WINDOW_PATTERN, GGUF_TYPE_ARRAY, true);
    expect_type(KEY_TARGET_LAYERS, GGUF_TYPE_ARRAY, true);
}

TEST(integers_of_any_width_are_read) {
    silence_ggml();
    const auto model = load([](tiny_file & f) {
        gguf_set_val_u8(f.kv(), KEY_N_LAYER, 1);
        gguf_set_val_i16(f.kv(), KEY_N_EMBD, 16);
        gguf_set_val_u64(f.kv(), KEY_N_FF, 16);
        gguf_set_val_i64(f.kv(), KEY_N_HEAD, 2);
    });
    CHECK(model->hparams().n_layer == 1 && model->hparams().n_embd == 16 && model->hparams().n_ff == 16);
    CHECK(model->hparams().n_head == 2);
}

TEST(values_out_of_range_are_refused) {
    silence_ggml();
    for (const char * key :
         {KEY_N_LAYER, KEY_N_EMBD, KEY_N_FF, KEY_N_HEAD, KEY_N_HEAD_KV, KEY_KEY_LENGTH, KEY_VALUE_LENGTH, KEY_ROPE_DIM,
          KEY_BLOCK_SIZE, KEY_CONV_KERNEL, KEY_CONV_GROUP, KEY_SELECTOR_RANK, KEY_SELECTOR_TOP_K, KEY_CONTEXT_LENGTH}) {
        for (const int64_t v : {(int64_t) 0, (int64_t) -1, (int64_t) UINT32_MAX, INT64_MAX, INT64_MIN}) {
            refused(std::string("key ") + key, [&](tiny_file & f) { gguf_set_val_i64(f.kv(), key, v); });
        }
        refused(std::string("key ") + key, [&](tiny_file & f) { gguf_set_val_u64(f.kv(), key, UINT64_MAX); });
    }
    refused("mask token id 24", [](tiny_file & f) { gguf_set_val_u32(f.kv(), KEY_MASK_TOKEN, 24); });
    refused(KEY_MASK_TOKEN, [](tiny_file & f) { gguf_set_val_i32(f.kv(), KEY_MASK_TOKEN, -1); });
    refused("head_count_kv 2", [](tiny_file & f) {
        gguf_set_val_u32(f.kv(), KEY_N_HEAD, 3);
        gguf_set_val_u32(f.kv(), KEY_N_HEAD_KV, 2);
    });
    refused("value_length", [](tiny_file & f) { gguf_set_val_u32(f.kv(), KEY_VALUE_LENGTH, 4); });
    refused("rope.dimension_count", [](tiny_file & f) { gguf_set_val_u32(f.kv(), KEY_ROPE_DIM, 10); });
    refused("rope.dimension_count", [](tiny_file & f) { gguf_set_val_u32(f.kv(), KEY_ROPE_DIM, 7); });
    refused("conv_group_size 3", [](tiny_file & f) { gguf_set_val_u32(f.kv(), KEY_CONV_GROUP, 3); });
    refused("selector_top_k 25", [](tiny_file & f) { gguf_set_val_u32(f.kv(), KEY_SELECTOR_TOP_K, 25); });
    refused(KEY_WINDOW, [](tiny_file & f) { gguf_set_val_u32(f.kv(), KEY_WINDOW, 1); });
    refused(KEY_WINDOW, [](tiny_file & f) { gguf_set_val_u32(f.kv(), KEY_WINDOW, UINT32_MAX); });
    for (const char * key : {KEY_RMS_EPS, KEY_ROPE_BASE, KEY_LOGIT_SCALE, KEY_LOGIT_SOFTCAP, KEY_EMBD_SCALE}) {
        for (const float v : {std::nanf(""), INFINITY, -INFINITY}) {
            refused(std::string("key ") + key, [&](tiny_file & f) { gguf_set_val_f32(f.kv(), key, v); });
        }
    }
    refused("layer_norm_rms_epsilon", [](tiny_file & f) { gguf_set_val_f32(f.kv(), KEY_RMS_EPS, 0.0f); });
    refused("rope.freq_base", [](tiny_file & f) { gguf_set_val_f32(f.kv(), KEY_ROPE_BASE, -1.0f); });
    refused("final_logit_softcapping", [](tiny_file & f) { gguf_set_val_f32(f.kv(), KEY_LOGIT_SOFTCAP, -1.0f); });
}

TEST(arrays_have_their_type_and_length) {
    silence_ggml();
    const auto set = [](const char * key, gguf_type type, size_t n, uint8_t fill) {
        return [=](tiny_file & f) {
            const bytes data(n * 8, fill);
            gguf_set_arr_data(f.kv(), key, type, data.data(), n);
        };
    };
    refused("key dflash.target_layers: expected an array of int32", set(KEY_TARGET_LAYERS, GGUF_TYPE_INT64, 2, 0));
    refused("key dflash.target_layers: expected an array of int32", set(KEY_TARGET_LAYERS, GGUF_TYPE_UINT8, 2, 1));
    refused("key dflash.target_layers: expected 1 to 512 layers", set(KEY_TARGET_LAYERS, GGUF_TYPE_INT32, 0, 0));
    refused("key dflash.target_layers: expected 1 to 512 layers", set(KEY_TARGET_LAYERS, GGUF_TYPE_INT32, 513, 0));
    refused("key dflash.target_layers: layer -1", set(KEY_TARGET_LAYERS, GGUF_TYPE_INT32, 2, 0xff));
    refused("key dflash.target_layers: layer", set(KEY_TARGET_LAYERS, GGUF_TYPE_UINT32, 2, 0x7f));
    refused("tensor fc.weight", set(KEY_TARGET_LAYERS, GGUF_TYPE_INT32, 3, 0));  // one tap too many for fc
    refused("one per layer, got 2", set(KEY_WINDOW_PATTERN, GGUF_TYPE_BOOL, 2, 1));
    refused("one per layer, got 0", set(KEY_WINDOW_PATTERN, GGUF_TYPE_BOOL, 0, 1));
    refused("expected an array of booleans", set(KEY_WINDOW_PATTERN, GGUF_TYPE_UINT8, 1, 1));
}

TEST(every_tensor_is_needed_and_fits) {
    silence_ggml();
    for (const tiny_tensor & t : tiny_file(small).tensors) {
        const bool own = t.name == TOKEN_EMBD || t.name == OUTPUT;  // else the target's are used
        if (!own && t.name != SEL_HIDDEN) {
            refused("tensor " + t.name + " is missing", [&](tiny_file & f) { f.drop(t.name); });
        }
        for (size_t i = 0; i < t.ne.size(); ++i) {
            for (const int64_t change : {-1, 1}) {
                std::vector<int64_t> ne = t.ne;
                ne[i] += change;
                // The vocabulary is as large as the first selector table says.
                const std::string named = t.name == SEL_PRED && i == 1 ? change > 0 ? SEL_SUCC : "mask token" : t.name;
                refused(named, [&](tiny_file & f) { f.remake(t.name, ne, t.type); }, t.name);
            }
        }
        std::vector<int64_t> more = t.ne;
        more.push_back(2);
        refused(t.name, [&](tiny_file & f) { f.remake(t.name, more, t.type); });

        const bool matrix = t.ne.size() == 2;
        for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F64, GGML_TYPE_I8, GGML_TYPE_I32}) {
            if (!matrix || (type != GGML_TYPE_F16 && type != GGML_TYPE_BF16)) {
                refused("tensor " + t.name, [&](tiny_file & f) { f.remake(t.name, t.ne, type); }, ggml_type_name(type));
            }
        }
    }
    refused("tensor rope_freqs.weight is not part of a DFlash 2 drafter",
            [](tiny_file & f) { f.tensors.push_back({"rope_freqs.weight", GGML_TYPE_F32, {4}, bytes(16)}); });
    refused("tensor blk.1.attn_q.weight is not part",
            [](tiny_file & f) { f.tensors.push_back({"blk.1.attn_q.weight", GGML_TYPE_F32, {4}, bytes(16)}); });
    refused("blk.1.", [](tiny_file & f) {
        gguf_set_val_u32(f.kv(), KEY_N_LAYER, 2);
        const bool both[] = {true, true};
        gguf_set_arr_data(f.kv(), KEY_WINDOW_PATTERN, GGUF_TYPE_BOOL, both, 2);
    });
}

TEST(d2t_lists_ids_of_the_vocabulary_once) {
    silence_ggml();
    refused("tensor d2t: id 24 is out of range", [](tiny_file & f) { f.add_d2t({0, 5, 24}); });
    refused("tensor d2t: id -1 is out of range", [](tiny_file & f) { f.add_d2t({-1, 5, 2}); });
    refused("tensor d2t: id", [](tiny_file & f) { f.add_d2t({INT64_MAX, 0}); });
    refused("tensor d2t: id", [](tiny_file & f) { f.add_d2t({0, INT64_MIN}); });
    refused("tensor d2t: id 5 is out of range or listed twice", [](tiny_file & f) { f.add_d2t({5, 6, 5}); });
    refused("tensor d2t: expected up to 24 int64 ids", [](tiny_file & f) {
        f.add_d2t({1, 2, 3, 4});
        f.remake(D2T, {4}, GGML_TYPE_I32);
    });
    refused("tensor d2t: expected up to 24 int64 ids", [](tiny_file & f) {
        f.add_d2t({1, 2, 3, 4});
        f.remake(D2T, {4, 2}, GGML_TYPE_I64);
    });
    refused("tensor d2t: expected up to 24 int64 ids", [](tiny_file & f) {
        f.add_d2t({1, 2, 3, 4});
        f.remake(D2T, {25}, GGML_TYPE_I64);
    });
    refused("tensor output.weight", [](tiny_file & f) {
        f.add_d2t({1, 2, 3, 4});
        f.remake(OUTPUT, {16, 24}, GGML_TYPE_F32);
    });
    refused("tensor output.weight is missing", [](tiny_file & f) {
        f.add_d2t({1, 2, 3, 4});
        f.drop(OUTPUT);
    });
    refused("selector_top_k 2", [](tiny_file & f) { f.add_d2t({7}); });

    const std::vector<int64_t> ids = {23, 4, 11, 0, 9};
    for (const lattice & lat : draft_once(load([&](tiny_file & f) { f.add_d2t(ids); }))) {
        for (const token_id id : lat.cand) {
            CHECK(std::count(ids.begin(), ids.end(), id) == 1);
        }
    }
}

TEST(weights_of_every_type_draft_or_are_refused) {
    silence_ggml();
    int32_t n_drafted = 0;
    for (int32_t i = 0; i < GGML_TYPE_COUNT; ++i) {
        const auto type   = (ggml_type) i;
        tiny_shape shape  = {1, 256, 256, 4, 4, 64, 40, 3, 1, 64, 256, 4, {1}};
        shape.matrix_type = type;
        if (ggml_blck_size(type) == 0) {
            continue;  // a removed type, which gguf.h refuses
        }
        const temp_file file(tiny_file(shape).content());
        const bool      computes = type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float;
        if (!computes) {
            CHECK_THROWS(draft_model(file.path()), errc::format);
            continue;
        }
        const lattice lat = draft_once(std::make_shared<draft_model>(file.path()))[0];
        validate(lat, 40);
        for (const float score : lat.score) {
            CHECK(std::isfinite(score));
        }
        n_drafted++;
    }
    CHECK(n_drafted > 20);
}

TEST(the_largest_convolution_drafts) {
    silence_ggml();
    const temp_file file(tiny_file({1, 8, 8, 1, 1, 8, 24, 80, 64, 8, 2, 2, {1}}).content());
    const lattice   lat = draft_once(std::make_shared<draft_model>(file.path()))[0];
    validate(lat, 24);
    CHECK(lat.n_pos == 79);
}

// Flipped bits of a good file: most are caught; what still loads must draft without a crash, whatever it drafts.
TEST(flipped_bits_never_crash) {
    silence_ggml();
    const tiny_file  tiny(small);
    const bytes      good     = tiny.content();
    const size_t     n_header = tiny.header().size();
    std::mt19937     rng(1);
    const temp_file  file;
    int32_t          n_refused = 0, n_drafted = 0;
    constexpr size_t N = 3000;
    for (size_t i = 0; i < N; ++i) {
        bytes         spoiled = good;
        const int32_t n_flips = 1 + (int32_t) (rng() % 3);
        for (int32_t j = 0; j < n_flips; ++j) {
            const size_t at = rng() % 8 ? rng() % n_header : rng() % good.size();
            spoiled[at] ^= (uint8_t) (rng() % 2 ? 1 << rng() % 8 : 1 + rng() % 255);
        }
        file.write(spoiled);
        try {
            const auto model = std::make_shared<draft_model>(file.path());
            draft_once(model);
            n_drafted++;
        } catch (const error & e) {
            const errc code = e.code();
            check(code == errc::format || code == errc::incompatible || code == errc::file, __FILE__, __LINE__,
                  e.what());
            n_refused++;
        }
    }
    CHECK(n_refused > 1000 && n_drafted > 100);
}

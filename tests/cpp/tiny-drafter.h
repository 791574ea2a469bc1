// Random DFlash 2 drafter files of a few kilobytes, made in memory so that a test can spoil them before they are read.
#pragma once

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "draft/schema.h"
#include "ggml-cpp.h"
#include "ggml.h"

using bytes = std::vector<uint8_t>;

// A file of its own, removed with the object.
class temp_file {
  public:
    explicit temp_file(const bytes & content = {}) {
        const std::string name = "dflash2-test-" + std::to_string(std::random_device()()) + ".gguf";
        path_                  = (std::filesystem::temp_directory_path() / name).string();
        write(content);
    }
    ~temp_file() { std::filesystem::remove(path_); }
    temp_file(const temp_file &)             = delete;
    temp_file & operator=(const temp_file &) = delete;

    void write(const bytes & content) const {
        std::ofstream(path_, std::ios::binary).write((const char *) content.data(), (std::streamsize) content.size());
    }
    const std::string & path() const { return path_; }

  private:
    std::string path_;
};

struct tiny_shape {
    int32_t              n_layer = 2, n_embd = 32, n_ff = 48, n_head = 4, n_head_kv = 2, head_dim = 8, n_vocab = 96;
    int32_t              block_size = 6, conv_kernel = 2, conv_group = 16, rank = 8, top_k = 4;
    std::vector<int32_t> target_layers = {1, 3};
    int32_t              window        = 0;   // 0: no sliding layer
    std::vector<uint8_t> sliding       = {};  // [n_layer]; empty: all, when there is a window
    ggml_type            matrix_type   = GGML_TYPE_F32;
    uint32_t             seed          = 1;
};

struct tiny_tensor {
    std::string          name;
    ggml_type            type;
    std::vector<int64_t> ne;
    bytes                data;
};

// Keys and tensors of a drafter with its own token_embd and output.
class tiny_file {
  public:
    std::vector<tiny_tensor> tensors;

    explicit tiny_file(const tiny_shape & s = {}) : kv_(gguf_init_empty()), rng_(s.seed), type_(s.matrix_type) {
        add_keys(s);
        add_tensors(s);
    }

    gguf_context * kv() { return kv_.get(); }

    tiny_tensor & tensor(const std::string & name) {
        for (tiny_tensor & t : tensors) {
            if (t.name == name) {
                return t;
            }
        }
        throw std::runtime_error("no tensor " + name);
    }

    void drop(const std::string & name) { tensors.erase(tensors.begin() + (&tensor(name) - tensors.data())); }

    // Another shape or type, with data of the size that the header then promises.
    void remake(const std::string & name, std::vector<int64_t> ne, ggml_type type) {
        tiny_tensor & t = tensor(name);
        t               = {name, type, std::move(ne), {}};
        t.data.resize(n_bytes(t));
    }

    void add_d2t(const std::vector<int64_t> & ids) {
        tiny_tensor t = {dflash2::schema::D2T, GGML_TYPE_I64, {(int64_t) ids.size()}, bytes(ids.size() * 8)};
        std::memcpy(t.data.data(), ids.data(), t.data.size());
        tensors.push_back(std::move(t));
        tiny_tensor & head = tensor(dflash2::schema::OUTPUT);  // its first rows
        head.data.resize(head.data.size() / (size_t) head.ne[1] * ids.size());
        head.ne[1] = (int64_t) ids.size();
    }

    bytes header() const {
        ggml_context_ptr ctx(ggml_init({(tensors.size() + 1) * ggml_tensor_overhead(), nullptr, /*no_alloc =*/true}));
        gguf_context_ptr all(gguf_init_empty());
        gguf_set_kv(all.get(), kv_.get());
        for (const tiny_tensor & t : tensors) {
            ggml_tensor * g = ggml_new_tensor(ctx.get(), t.type, (int) t.ne.size(), t.ne.data());
            ggml_set_name(g, t.name.c_str());
            gguf_add_tensor(all.get(), g);
        }
        bytes out(gguf_get_meta_size(all.get()));
        gguf_get_meta_data(all.get(), out.data());
        return out;
    }

    bytes content() const {
        bytes out = header();
        for (const tiny_tensor & t : tensors) {
            out.insert(out.end(), t.data.begin(), t.data.end());
            out.resize(GGML_PAD(out.size(), GGUF_DEFAULT_ALIGNMENT));
        }
        return out;
    }

  private:
    static size_t n_bytes(const tiny_tensor & t) {
        size_t n = ggml_row_size(t.type, t.ne[0]);
        for (size_t i = 1; i < t.ne.size(); ++i) {
            n *= (size_t) t.ne[i];
        }
        return n;
    }

    void add_keys(const tiny_shape & s) {
        using namespace dflash2::schema;
        const auto u32 = [&](const char * key, int32_t v) { gguf_set_val_u32(kv(), key, (uint32_t) v); };
        gguf_set_val_str(kv(), KEY_ARCHITECTURE, ARCH);
        u32(KEY_CONTEXT_LENGTH, 4096);
        u32(KEY_N_LAYER, s.n_layer);
        u32(KEY_N_EMBD, s.n_embd);
        u32(KEY_N_FF, s.n_ff);
        u32(KEY_N_HEAD, s.n_head);
        u32(KEY_N_HEAD_KV, s.n_head_kv);
        u32(KEY_KEY_LENGTH, s.head_dim);
        u32(KEY_VALUE_LENGTH, s.head_dim);
        u32(KEY_ROPE_DIM, s.head_dim);
        gguf_set_val_f32(kv(), KEY_RMS_EPS, 1e-6f);
        gguf_set_val_f32(kv(), KEY_ROPE_BASE, 1e4f);
        gguf_set_val_f32(kv(), KEY_LOGIT_SCALE, 2.0f);
        gguf_set_val_f32(kv(), KEY_LOGIT_SOFTCAP, 20.0f);
        gguf_set_val_f32(kv(), KEY_EMBD_SCALE, 1.5f);
        gguf_set_val_bool(kv(), KEY_CAUSAL, false);
        u32(KEY_WINDOW, s.window);
        const std::vector<uint8_t> sliding = s.sliding.empty() ? bytes(s.n_layer, s.window > 0) : s.sliding;
        gguf_set_arr_data(kv(), KEY_WINDOW_PATTERN, GGUF_TYPE_BOOL, sliding.data(), sliding.size());
        u32(KEY_BLOCK_SIZE, s.block_size);
        u32(KEY_CONV_KERNEL, s.conv_kernel);
        u32(KEY_CONV_GROUP, s.conv_group);
        u32(KEY_SELECTOR_RANK, s.rank);
        u32(KEY_SELECTOR_TOP_K, s.top_k);
        gguf_set_arr_data(kv(), KEY_TARGET_LAYERS, GGUF_TYPE_INT32, s.target_layers.data(), s.target_layers.size());
        u32(KEY_MASK_TOKEN, s.n_vocab - 1);
        gguf_set_val_str(kv(), KEY_TARGET_NAME, "tiny");
        u32(KEY_TARGET_N_LAYER, 4);
        gguf_set_val_u64(kv(), KEY_TARGET_VOCAB_HASH, 0x123456789abcdef0);
    }

    void add_tensors(const tiny_shape & s) {
        using namespace dflash2::schema;
        const int64_t n_q = s.head_dim * s.n_head, n_kv = s.head_dim * s.n_head_kv;
        const int64_t n_coeff = 2 * s.conv_kernel * (s.n_embd / s.conv_group);
        matrix(FC, (int64_t) s.target_layers.size() * s.n_embd, s.n_embd);
        vector(HIDDEN_NORM, {s.n_embd}, 1.0f);
        vector(OUTPUT_NORM, {s.n_embd}, 1.0f);
        matrix(SEL_PRED, s.rank, s.n_vocab);
        matrix(SEL_SUCC, s.rank, s.n_vocab);
        matrix(SEL_HIDDEN, s.n_embd, s.rank);
        matrix(TOKEN_EMBD, s.n_embd, s.n_vocab);
        matrix(OUTPUT, s.n_embd, s.n_vocab);
        for (int32_t il = 0; il < s.n_layer; ++il) {
            const auto blk = [&](const char * name) { return "blk." + std::to_string(il) + "." + name; };
            vector(blk(ATTN_NORM), {s.n_embd}, 1.0f);
            matrix(blk(ATTN_Q), s.n_embd, n_q);
            matrix(blk(ATTN_K), s.n_embd, n_kv);
            matrix(blk(ATTN_V), s.n_embd, n_kv);
            matrix(blk(ATTN_OUT), n_q, s.n_embd);
            vector(blk(ATTN_Q_NORM), {s.head_dim}, 1.0f);
            vector(blk(ATTN_K_NORM), {s.head_dim}, 1.0f);
            vector(blk(ATTN_CONV_BASE), {s.n_embd, s.conv_kernel, 2}, 0.5f);
            matrix(blk(ATTN_CONV_PROJ), s.n_embd, n_coeff);
            vector(blk(FFN_NORM), {s.n_embd}, 1.0f);
            matrix(blk(FFN_GATE), s.n_embd, s.n_ff);
            matrix(blk(FFN_UP), s.n_embd, s.n_ff);
            matrix(blk(FFN_DOWN), s.n_ff, s.n_embd);
            vector(blk(FFN_CONV_BASE), {s.n_embd, s.conv_kernel, 2}, 0.5f);
            matrix(blk(FFN_CONV_PROJ), s.n_embd, n_coeff);
        }
    }

    std::vector<float> normal(size_t n, float mean, float deviation) {
        std::normal_distribution<float> law(mean, deviation);
        std::vector<float>              v(n);
        for (float & x : v) {
            x = law(rng_);
        }
        return v;
    }

    // Rows that keep the size of what they multiply.
    void matrix(const std::string & name, int64_t ne0, int64_t ne1) {
        tiny_tensor              t = {name, type_, {ne0, ne1}, {}};
        const std::vector<float> v = normal((size_t) (ne0 * ne1), 0.0f, 1.0f / std::sqrt((float) ne0));
        t.data.resize(n_bytes(t));
        if (type_ == GGML_TYPE_F32) {
            std::memcpy(t.data.data(), v.data(), t.data.size());
        } else if (ggml_get_type_traits(type_)->to_float && ggml_type_name(type_)[0] != 'i') {
            ggml_quantize_chunk(type_, v.data(), t.data.data(), 0, ne1, ne0, nullptr);
        }  // else zeros: quantizers of i-types take seconds, activation types have none
        tensors.push_back(std::move(t));
    }

    void vector(const std::string & name, std::vector<int64_t> ne, float mean) {
        tiny_tensor t = {name, GGML_TYPE_F32, std::move(ne), {}};
        t.data.resize(n_bytes(t));
        std::memcpy(t.data.data(), normal(t.data.size() / 4, mean, 0.2f).data(), t.data.size());
        tensors.push_back(std::move(t));
    }

    gguf_context_ptr kv_;
    std::mt19937     rng_;
    ggml_type        type_;
};

inline void silence_ggml() {
    ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
}

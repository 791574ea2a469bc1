#include "draft/gguf-file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <system_error>
#include <utility>

#include "ggml.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

namespace {

int64_t read_int(const gguf_context * ctx, int64_t id) {
    switch (gguf_get_kv_type(ctx, id)) {
        case GGUF_TYPE_UINT8:
            return gguf_get_val_u8(ctx, id);
        case GGUF_TYPE_INT8:
            return gguf_get_val_i8(ctx, id);
        case GGUF_TYPE_UINT16:
            return gguf_get_val_u16(ctx, id);
        case GGUF_TYPE_INT16:
            return gguf_get_val_i16(ctx, id);
        case GGUF_TYPE_UINT32:
            return gguf_get_val_u32(ctx, id);
        case GGUF_TYPE_INT32:
            return gguf_get_val_i32(ctx, id);
        case GGUF_TYPE_INT64:
            return gguf_get_val_i64(ctx, id);
        default: {  // UINT64; what does not fit is out of every range that callers allow
            const uint64_t v = gguf_get_val_u64(ctx, id);
            return v > (uint64_t) INT64_MAX ? INT64_MAX : (int64_t) v;
        }
    }
}

}  // namespace

void gguf_file::fail(const std::string & what) const {
    std::string text = what;  // may quote the file
    std::replace_if(text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    throw error(errc::format, path_ + ": " + text);
}

gguf_file::gguf_file(const std::string & path) : path_(path) {
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
        throw error(errc::file, path + ": cannot open: not a regular file");
    }
    file_.reset(std::fopen(path.c_str(), "rb"));
    if (!file_) {
        throw error(errc::file, path + ": cannot open: " + std::strerror(errno));
    }
    if (std::fseek(file_.get(), 0, SEEK_END) != 0) {
        throw error(errc::file, path + ": cannot seek: " + std::strerror(errno));
    }
    const uint64_t file_size = (uint64_t) std::ftell(file_.get());
    std::rewind(file_.get());

    ctx_.reset(gguf_init_from_file_ptr(file_.get(), {/*no_alloc =*/true, /*ctx =*/nullptr}));
    if (!ctx_) {
        fail("not a readable GGUF file (wrong magic, truncated or malformed header); download or convert it again");
    }

    const uint64_t data = gguf_get_data_offset(ctx_.get());
    const int64_t  n    = gguf_get_n_tensors(ctx_.get());
    for (int64_t i = 0; i < n; ++i) {
        gguf_tensor     t;
        const int64_t * ne = gguf_get_tensor_ne(ctx_.get(), i);
        t.name             = gguf_get_tensor_name(ctx_.get(), i);
        t.type             = gguf_get_tensor_type(ctx_.get(), i);
        t.ne.assign(ne, ne + GGML_MAX_DIMS);
        // gguf_get_tensor_size() may wrap; this product has been checked to fit.
        t.size   = (size_t) (ne[0] / ggml_blck_size(t.type) * ne[1] * ne[2] * ne[3]) * ggml_type_size(t.type);
        t.offset = data + gguf_get_tensor_offset(ctx_.get(), i);
        if (t.offset > file_size || t.size > file_size - t.offset) {
            fail("tensor " + t.name + ": expected " + std::to_string(t.size) + " bytes at offset " +
                 std::to_string(t.offset) + ", but the file has only " + std::to_string(file_size) +
                 " bytes; it is truncated, download or convert it again");
        }
        tensors_.push_back(std::move(t));
    }
}

int64_t gguf_file::find(const char * key, std::initializer_list<gguf_type> allowed, const char * expected) const {
    const int64_t id = gguf_find_key(ctx_.get(), key);
    if (id < 0) {
        return -1;
    }
    const gguf_type type = gguf_get_kv_type(ctx_.get(), id);
    for (const gguf_type a : allowed) {
        if (a == type) {
            return id;
        }
    }
    fail(std::string("key ") + key + ": expected " + expected + ", got type " + gguf_type_name(type));
}

bool gguf_file::has(const char * key) const {
    return gguf_find_key(ctx_.get(), key) >= 0;
}

std::optional<int64_t> gguf_file::find_int(const char * key, int64_t min, int64_t max) const {
    const int64_t id = find(key,
                            {GGUF_TYPE_UINT8, GGUF_TYPE_INT8, GGUF_TYPE_UINT16, GGUF_TYPE_INT16, GGUF_TYPE_UINT32,
                             GGUF_TYPE_INT32, GGUF_TYPE_UINT64, GGUF_TYPE_INT64},
                            "an integer");
    if (id < 0) {
        return std::nullopt;
    }
    const int64_t v = read_int(ctx_.get(), id);
    if (v < min || v > max) {
        fail(std::string("key ") + key + ": expected a value in [" + std::to_string(min) + ", " + std::to_string(max) +
             "], got " + std::to_string(v));
    }
    return v;
}

int64_t gguf_file::get_int(const char * key, int64_t min, int64_t max) const {
    const auto v = find_int(key, min, max);
    if (!v) {
        fail(std::string("key ") + key + " is missing; convert the drafter again");
    }
    return *v;
}

std::optional<float> gguf_file::find_float(const char * key) const {
    const int64_t id = find(key, {GGUF_TYPE_FLOAT32}, "a float32");
    if (id < 0) {
        return std::nullopt;
    }
    const float v = gguf_get_val_f32(ctx_.get(), id);
    if (!std::isfinite(v)) {
        fail(std::string("key ") + key + ": expected a finite number, got " + std::to_string(v));
    }
    return v;
}

float gguf_file::get_float(const char * key) const {
    const auto v = find_float(key);
    if (!v) {
        fail(std::string("key ") + key + " is missing; convert the drafter again");
    }
    return *v;
}

std::optional<bool> gguf_file::find_bool(const char * key) const {
    const int64_t id = find(key, {GGUF_TYPE_BOOL}, "a boolean");
    return id < 0 ? std::nullopt : std::optional<bool>(gguf_get_val_bool(ctx_.get(), id));
}

std::optional<std::string> gguf_file::find_string(const char * key) const {
    const int64_t id = find(key, {GGUF_TYPE_STRING}, "a string");
    return id < 0 ? std::nullopt : std::optional<std::string>(gguf_get_val_str(ctx_.get(), id));
}

std::optional<uint64_t> gguf_file::find_u64(const char * key) const {
    const int64_t id = find(key, {GGUF_TYPE_UINT64}, "a uint64");
    return id < 0 ? std::nullopt : std::optional<uint64_t>(gguf_get_val_u64(ctx_.get(), id));
}

std::vector<int32_t> gguf_file::get_int_array(const char * key) const {
    const int64_t id = find(key, {GGUF_TYPE_ARRAY}, "an array of int32");
    if (id < 0) {
        fail(std::string("key ") + key + " is missing; convert the drafter again");
    }
    const gguf_type type = gguf_get_arr_type(ctx_.get(), id);
    if (type != GGUF_TYPE_INT32 && type != GGUF_TYPE_UINT32) {
        fail(std::string("key ") + key + ": expected an array of int32, got an array of " + gguf_type_name(type));
    }
    const auto * data = (const int32_t *) gguf_get_arr_data(ctx_.get(), id);
    return {data, data + gguf_get_arr_n(ctx_.get(), id)};
}

std::optional<std::vector<uint8_t>> gguf_file::find_bool_array(const char * key) const {
    const int64_t id = find(key, {GGUF_TYPE_ARRAY}, "an array of booleans");
    if (id < 0) {
        return std::nullopt;
    }
    const gguf_type type = gguf_get_arr_type(ctx_.get(), id);
    if (type != GGUF_TYPE_BOOL) {
        fail(std::string("key ") + key + ": expected an array of booleans, got an array of " + gguf_type_name(type));
    }
    const auto * data = (const uint8_t *) gguf_get_arr_data(ctx_.get(), id);
    return std::vector<uint8_t>(data, data + gguf_get_arr_n(ctx_.get(), id));
}

std::optional<std::vector<std::string>> gguf_file::find_string_array(const char * key) const {
    const int64_t id = find(key, {GGUF_TYPE_ARRAY}, "an array of strings");
    if (id < 0) {
        return std::nullopt;
    }
    const gguf_type type = gguf_get_arr_type(ctx_.get(), id);
    if (type != GGUF_TYPE_STRING) {
        fail(std::string("key ") + key + ": expected an array of strings, got an array of " + gguf_type_name(type));
    }
    std::vector<std::string> out(gguf_get_arr_n(ctx_.get(), id));
    for (size_t i = 0; i < out.size(); ++i) {
        out[i] = gguf_get_arr_str(ctx_.get(), id, i);
    }
    return out;
}

const gguf_tensor * gguf_file::find_tensor(const std::string & name) const {
    for (const gguf_tensor & t : tensors_) {
        if (t.name == name) {
            return &t;
        }
    }
    return nullptr;
}

void gguf_file::read(const gguf_tensor & t, void * out) const {
    if (std::fseek(file_.get(), (long) t.offset, SEEK_SET) != 0 || std::fread(out, 1, t.size, file_.get()) != t.size) {
        throw error(errc::file, path_ + ": cannot read tensor " + t.name + ": " + std::strerror(errno));
    }
}

}  // namespace dflash2

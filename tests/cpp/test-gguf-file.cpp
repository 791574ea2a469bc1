// The container: whatever the bytes are, a gguf_file is whole or the constructor throws.
#include "draft/gguf-file.h"

#include <algorithm>

#include "testing.h"
#include "tiny-drafter.h"

using namespace dflash2;

// Little-endian writer of headers that no GGUF library would write.
struct raw {
    bytes out;

    template <typename T>
    raw & num(T v) {
        const auto * p = (const uint8_t *) &v;
        out.insert(out.end(), p, p + sizeof v);
        return *this;
    }
    raw & str(const std::string & s) {
        num<uint64_t>(s.size());
        out.insert(out.end(), s.begin(), s.end());
        return *this;
    }
    raw & key(const std::string & name, gguf_type type) { return str(name).num((int32_t) type); }
    raw & array(const std::string & name, gguf_type type, uint64_t n) {
        return key(name, GGUF_TYPE_ARRAY).num((int32_t) type).num(n);
    }
    raw & tensor(const std::string & name, const std::vector<int64_t> & ne, int32_t type, uint64_t offset) {
        str(name).num((uint32_t) ne.size());
        for (const int64_t n : ne) {
            num(n);
        }
        return num(type).num(offset);
    }
    raw & pad(size_t n) {
        out.resize(out.size() + n);
        return *this;
    }
};

static raw start(int64_t n_tensors, int64_t n_kv, uint32_t version = 3, const char * magic = "GGUF") {
    raw r;
    r.out.assign(magic, magic + 4);
    return r.num(version).num(n_tensors).num(n_kv);
}

// The file is refused with errc::format and a message that has the path and `part`.
static void refused(const bytes & content, const std::string & part, const std::string & name) {
    const temp_file file(content);
    std::string     message;
    try {
        const gguf_file read(file.path());
        message = "(nothing)";
    } catch (const error & e) {
        message = e.what();
        check(e.code() == errc::format, __FILE__, __LINE__, name + ": format, not: " + message);
    }
    check(message.find(file.path()) == 0 && message.find(part) != std::string::npos, __FILE__, __LINE__,
          name + ": expected \"" + part + "\" in: " + message);
}

TEST(a_file_that_cannot_be_read_is_named) {
    CHECK_THROWS(gguf_file("no/such/file.gguf"), errc::file);
    CHECK_THROWS(gguf_file(std::filesystem::temp_directory_path().string()), errc::file);  // a directory
}

TEST(malformed_headers_are_refused) {
    silence_ggml();
    const std::string no = "not a readable GGUF file";
    refused({}, no, "empty");
    refused(start(0, 0, 3, "GGML").out, no, "magic");
    for (const uint32_t version : {0u, 1u, 4u, 0x03000000u, UINT32_MAX}) {
        refused(start(0, 0, version).out, no, "version " + std::to_string(version));
    }
    for (const int64_t n : {(int64_t) 1, (int64_t) 1 << 40, INT64_MAX, (int64_t) -1, INT64_MIN}) {
        refused(start(n, 0).out, no, std::to_string(n) + " tensors");
        refused(start(0, n).out, no, std::to_string(n) + " keys");
    }

    for (const uint64_t n : {(uint64_t) 100, (uint64_t) 1 << 40, UINT64_MAX}) {
        const std::string length = std::to_string(n);
        refused(start(0, 1).num(n).pad(64).out, no, "key name of length " + length);
        refused(start(0, 1).key("k", GGUF_TYPE_STRING).num(n).pad(64).out, no, "string of length " + length);
        refused(start(1, 0).num(n).pad(64).out, no, "tensor name of length " + length);
        for (const gguf_type t : {GGUF_TYPE_UINT8, GGUF_TYPE_BOOL, GGUF_TYPE_INT32, GGUF_TYPE_FLOAT64}) {
            refused(start(0, 1).array("k", t, n).pad(64).out, no, "array of length " + length);
        }
        refused(start(0, 1).array("k", GGUF_TYPE_STRING, n).pad(64).out, no, "array of strings of length " + length);
    }
    for (const int32_t type : {13, 255, -1, INT32_MIN}) {
        refused(start(0, 1).key("k", (gguf_type) type).pad(64).out, no, "key type " + std::to_string(type));
        refused(start(0, 1).array("k", (gguf_type) type, 2).pad(64).out, no, "array of type " + std::to_string(type));
    }
    refused(start(0, 1).array("k", GGUF_TYPE_ARRAY, 1).pad(64).out, no, "array of arrays");
    refused(start(0, 1).key("", GGUF_TYPE_UINT8).pad(64).out, no, "empty key name");
    refused(start(0, 2).key("k", GGUF_TYPE_INT8).pad(1).key("k", GGUF_TYPE_INT8).pad(1).out, no, "key listed twice");

    for (const uint32_t alignment : {0u, 3u, 48u, 1u << 31, UINT32_MAX}) {
        refused(start(1, 1)
                    .key("general.alignment", GGUF_TYPE_UINT32)
                    .num(alignment)
                    .tensor("t", {8}, GGML_TYPE_F32, 0)
                    .pad(512)
                    .out,
                no, "alignment " + std::to_string(alignment));
    }
    refused(start(0, 1).key("general.alignment", GGUF_TYPE_STRING).str("32").out, no, "alignment that is a string");
    refused(start(0, 1).array("general.alignment", GGUF_TYPE_UINT32, 1).num(32u).out, no, "alignment that is an array");
    refused(start(0, 1).array("general.alignment", GGUF_TYPE_UINT32, 0).out, no, "alignment that is an empty array");
}

TEST(malformed_tensors_are_refused) {
    silence_ggml();
    const std::string no     = "not a readable GGUF file";
    const auto        tensor = [](const std::vector<int64_t> & ne, int32_t type, uint64_t offset = 0) {
        return start(1, 0).tensor("t", ne, type, offset).pad(512).out;
    };
    refused(tensor({1, 1, 1, 1, 1}, GGML_TYPE_F32), no, "5 dimensions");
    refused(start(1, 0).str("t").num(UINT32_MAX).pad(512).out, no, "2^32 - 1 dimensions");
    refused(tensor({-1}, GGML_TYPE_F32), no, "negative size");
    refused(tensor({4, INT64_MIN}, GGML_TYPE_F32), no, "negative rows");
    refused(tensor({(int64_t) 1 << 32, (int64_t) 1 << 32}, GGML_TYPE_F32), no, "2^64 values");
    refused(tensor({INT64_MAX, 2}, GGML_TYPE_I8), no, "2^64 bytes");
    refused(tensor({(int64_t) 1 << 62}, GGML_TYPE_F32), no, "2^64 bytes of float");
    for (const int32_t type : {-1, 4, 5, 31, 36, (int32_t) GGML_TYPE_COUNT, INT32_MAX}) {
        refused(tensor({32}, type), no, "tensor type " + std::to_string(type));
    }
    refused(tensor({33}, GGML_TYPE_Q8_0), no, "part of a block");
    refused(tensor({8}, GGML_TYPE_F32, 32), no, "gap before the first tensor");
    refused(tensor({8}, GGML_TYPE_F32, 1), no, "unaligned offset");
    refused(tensor({8}, GGML_TYPE_F32, UINT64_MAX - 31), no, "offset that wraps");
    refused(start(1, 0).tensor(std::string(64, 'n'), {8}, GGML_TYPE_F32, 0).pad(512).out, no, "name of 64 bytes");
    const auto two = [](uint64_t offset, const char * second) {
        return start(2, 0).tensor("t", {8}, GGML_TYPE_F32, 0).tensor(second, {8}, GGML_TYPE_F32, offset).pad(512).out;
    };
    refused(two(32, "t"), no, "tensor listed twice");
    refused(two(0, "u"), no, "overlap");
    refused(two(64, "u"), no, "gap");

    refused(tensor({4096}, GGML_TYPE_F32), "tensor t: expected 16384 bytes at offset 64", "data past the end");
    refused(tensor({(int64_t) 1 << 60}, GGML_TYPE_F32), "tensor t", "2^62 bytes");
    refused(start(1, 0).tensor("t", {8}, GGML_TYPE_F32, 0).out, no, "no data at all");
}

// A size modulo 2^64 that any file has: 32 * (2^64 / 1088 + 1) values of 34 bytes per 32.
TEST(a_size_that_wraps_is_refused) {
    silence_ggml();
    const auto n = (int64_t) (32 * (UINT64_MAX / 1088 + 1));
    refused(start(1, 0).tensor("t", {n}, GGML_TYPE_Q8_0, 0).pad(512).out, "tensor t", "q8_0 of " + std::to_string(n));
}

TEST(a_file_cut_anywhere_is_refused) {
    silence_ggml();
    tiny_file       tiny({1, 16, 16, 2, 1, 8, 24, 4, 2, 8, 4, 2});
    const bytes     whole  = tiny.content();
    const size_t    header = tiny.header().size();
    const size_t    last   = tiny.tensors.back().data.size();
    const size_t    end    = whole.size() - (GGML_PAD(last, (size_t) 32) - last);
    const auto      size   = [](const temp_file & f) { return (uintmax_t) std::filesystem::file_size(f.path()); };
    const temp_file file(whole);
    CHECK(gguf_file(file.path()).tensors().size() == tiny.tensors.size());

    for (size_t n = end; n-- > 0; n -= n > header + 8 ? std::min<size_t>(n - header - 8, 61) : 0) {
        std::filesystem::resize_file(file.path(), n);
        CHECK(size(file) == n);
        CHECK_THROWS(gguf_file(file.path()), errc::format);
    }
}

TEST(getters_return_what_the_file_has) {
    silence_ggml();
    gguf_context_ptr kv(gguf_init_empty());
    gguf_set_val_u8(kv.get(), "u8", 200);
    gguf_set_val_i8(kv.get(), "i8", -100);
    gguf_set_val_u16(kv.get(), "u16", 60000);
    gguf_set_val_i16(kv.get(), "i16", -30000);
    gguf_set_val_u32(kv.get(), "u32", UINT32_MAX);
    gguf_set_val_i32(kv.get(), "i32", INT32_MIN);
    gguf_set_val_u64(kv.get(), "u64", UINT64_MAX);
    gguf_set_val_i64(kv.get(), "i64", INT64_MIN);
    gguf_set_val_f32(kv.get(), "f32", 0.25f);
    gguf_set_val_f32(kv.get(), "nan", std::nanf(""));
    gguf_set_val_f32(kv.get(), "inf", INFINITY);
    gguf_set_val_bool(kv.get(), "bool", true);
    gguf_set_val_str(kv.get(), "str", "text");
    const int32_t numbers[] = {3, -4};
    const bool    flags[]   = {true, false, true};
    const char *  words[]   = {"", "two words"};
    gguf_set_arr_data(kv.get(), "numbers", GGUF_TYPE_INT32, numbers, 2);
    gguf_set_arr_data(kv.get(), "no numbers", GGUF_TYPE_INT32, numbers, 0);
    gguf_set_arr_data(kv.get(), "flags", GGUF_TYPE_BOOL, flags, 3);
    gguf_set_arr_str(kv.get(), "words", words, 2);
    bytes content(gguf_get_meta_size(kv.get()));
    gguf_get_meta_data(kv.get(), content.data());

    const temp_file file(content);
    const gguf_file f(file.path());
    CHECK(f.get_int("u8", 0, 200) == 200);
    CHECK(f.get_int("i8", -100, 0) == -100);
    CHECK(f.get_int("u16", 0, 60000) == 60000);
    CHECK(f.get_int("i16", -30000, 0) == -30000);
    CHECK(f.get_int("u32", 0, INT64_MAX) == UINT32_MAX);
    CHECK(f.get_int("i32", INT64_MIN, 0) == INT32_MIN);
    CHECK(f.get_int("i64", INT64_MIN, 0) == INT64_MIN);
    CHECK_THROWS(f.get_int("u64", INT64_MIN, INT64_MAX - 1), errc::format);  // no value of int64, not -1
    CHECK_THROWS(f.get_int("u8", 0, 199), errc::format);
    CHECK_THROWS(f.get_int("u8", 201, 300), errc::format);
    CHECK(f.find_u64("u64") == UINT64_MAX);
    CHECK(f.get_float("f32") == 0.25f);
    CHECK_THROWS(f.find_float("nan"), errc::format);
    CHECK_THROWS(f.find_float("inf"), errc::format);
    CHECK(f.find_bool("bool") == true);
    CHECK(f.find_string("str") == "text");
    CHECK((f.get_int_array("numbers") == std::vector<int32_t>{3, -4}));
    CHECK(f.get_int_array("no numbers").empty());
    CHECK((f.find_bool_array("flags") == std::vector<uint8_t>{1, 0, 1}));
    CHECK((f.find_string_array("words") == std::vector<std::string>{"", "two words"}));

    CHECK(f.has("u8") && !f.has("u"));
    CHECK(!f.find_int("u", 0, 1) && !f.find_float("u") && !f.find_bool("u") && !f.find_string("u") &&
          !f.find_u64("u") && !f.find_bool_array("u") && !f.find_string_array("u"));
    CHECK_THROWS(f.get_int("u", 0, 1), errc::format);
    CHECK_THROWS(f.get_float("u"), errc::format);
    CHECK_THROWS(f.get_int_array("u"), errc::format);
    for (const char * key : {"f32", "bool", "str", "numbers"}) {
        CHECK_THROWS(f.find_int(key, 0, 1), errc::format);
        CHECK_THROWS(f.find_u64(key), errc::format);
    }
    for (const char * key : {"u8", "str", "words"}) {
        CHECK_THROWS(f.find_float(key), errc::format);
        CHECK_THROWS(f.find_bool(key), errc::format);
        CHECK_THROWS(f.get_int_array(key), errc::format);
        CHECK_THROWS(f.find_bool_array(key), errc::format);
    }
    for (const char * key : {"u8", "numbers", "flags"}) {
        CHECK_THROWS(f.find_string(key), errc::format);
        CHECK_THROWS(f.find_string_array(key), errc::format);
    }
}

TEST(tensor_data_is_read_as_written) {
    silence_ggml();
    const tiny_file tiny;
    const temp_file file(tiny.content());
    const gguf_file f(file.path());
    for (const tiny_tensor & t : tiny.tensors) {
        const gguf_tensor * found = f.find_tensor(t.name);
        CHECK(found && found->type == t.type && found->size == t.data.size());
        bytes data(found->size);
        f.read(*found, data.data());
        CHECK(data == t.data);
    }
    CHECK(!f.find_tensor("no tensor"));

    std::filesystem::resize_file(file.path(), 100);
    bytes data(f.tensors()[0].size);
    CHECK_THROWS(f.read(f.tensors()[0], data.data()), errc::file);
}

// Names in messages come from the file; they must not break a terminal or the text that a caller makes of them.
TEST(messages_are_printable) {
    silence_ggml();
    refused(start(1, 0).tensor("t\x1b[2J\xff\n", {4096}, GGML_TYPE_F32, 0).pad(64).out, "tensor t?[2J??:", "name");
}

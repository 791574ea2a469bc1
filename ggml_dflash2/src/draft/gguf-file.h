// A GGUF file as hostile input: every getter checks presence, type and range and throws errc::format; gguf.h's own
// getters abort on a wrong type.
#pragma once

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gguf.h"

namespace dflash2 {

struct gguf_tensor {
    std::string          name;
    ggml_type            type = GGML_TYPE_COUNT;
    std::vector<int64_t> ne;          // [GGML_MAX_DIMS], trailing ones
    uint64_t             offset = 0;  // in the file
    size_t               size   = 0;  // bytes
};

class gguf_file {
  public:
    // Reads the header and checks that every tensor's data lies inside the file. Throws errc::file, errc::format.
    explicit gguf_file(const std::string & path);

    const std::string & path() const { return path_; }

    bool                                    has(const char * key) const;
    int64_t                                 get_int(const char * key, int64_t min, int64_t max) const;
    std::optional<int64_t>                  find_int(const char * key, int64_t min, int64_t max) const;
    float                                   get_float(const char * key) const;
    std::optional<float>                    find_float(const char * key) const;
    std::optional<bool>                     find_bool(const char * key) const;
    std::optional<std::string>              find_string(const char * key) const;
    std::optional<uint64_t>                 find_u64(const char * key) const;
    std::vector<int32_t>                    get_int_array(const char * key) const;
    std::optional<std::vector<uint8_t>>     find_bool_array(const char * key) const;
    std::optional<std::vector<std::string>> find_string_array(const char * key) const;

    const std::vector<gguf_tensor> & tensors() const { return tensors_; }
    const gguf_tensor *              find_tensor(const std::string & name) const;

    // Reads a tensor's bytes. out: t.size bytes.
    void read(const gguf_tensor & t, void * out) const;

    [[noreturn]] void fail(const std::string & what) const;  // errc::format with the path in front

  private:
    struct closer {
        void operator()(gguf_context * c) const { gguf_free(c); }
        void operator()(std::FILE * f) const { std::fclose(f); }
    };

    int64_t find(const char * key, std::initializer_list<gguf_type> allowed, const char * expected) const;

    std::string                           path_;
    std::unique_ptr<gguf_context, closer> ctx_;
    std::unique_ptr<std::FILE, closer>    file_;
    std::vector<gguf_tensor>              tensors_;
};

}  // namespace dflash2

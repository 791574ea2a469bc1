// The header of any GGUF file as Python objects.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "bindings.h"
#include "ggml.h"
#include "ggml_dflash2/error.h"
#include "gguf.h"

namespace dflash2 {

namespace {

// Bytes that are not UTF-8 survive as surrogates, as in Python's file names.
py::str lossless_text(const char * bytes) {
    return py::reinterpret_steal<py::str>(
        PyUnicode_DecodeUTF8(bytes, py::ssize_t(std::strlen(bytes)), "surrogateescape"));
}

template <typename T>
py::list to_list(const void * data, size_t n) {
    const T * values = static_cast<const T *>(data);
    py::list  list(n);
    for (size_t i = 0; i < n; ++i) {
        list[i] = py::cast(values[i]);
    }
    return list;
}

// Scalars and arrays alike: n values of a type. Strings are not stored as plain data.
py::list numbers(gguf_type type, const void * data, size_t n) {
    switch (type) {
        case GGUF_TYPE_UINT8:
            return to_list<uint8_t>(data, n);
        case GGUF_TYPE_INT8:
            return to_list<int8_t>(data, n);
        case GGUF_TYPE_UINT16:
            return to_list<uint16_t>(data, n);
        case GGUF_TYPE_INT16:
            return to_list<int16_t>(data, n);
        case GGUF_TYPE_UINT32:
            return to_list<uint32_t>(data, n);
        case GGUF_TYPE_INT32:
            return to_list<int32_t>(data, n);
        case GGUF_TYPE_UINT64:
            return to_list<uint64_t>(data, n);
        case GGUF_TYPE_INT64:
            return to_list<int64_t>(data, n);
        case GGUF_TYPE_FLOAT32:
            return to_list<float>(data, n);
        case GGUF_TYPE_FLOAT64:
            return to_list<double>(data, n);
        case GGUF_TYPE_BOOL:
            return to_list<bool>(data, n);
        default:
            return py::list();
    }
}

py::object value(const gguf_context * ctx, int64_t id) {
    const gguf_type type = gguf_get_kv_type(ctx, id);
    if (type == GGUF_TYPE_STRING) {
        return lossless_text(gguf_get_val_str(ctx, id));
    }
    if (type != GGUF_TYPE_ARRAY) {
        return numbers(type, gguf_get_val_data(ctx, id), 1)[0];
    }
    const size_t n = gguf_get_arr_n(ctx, id);
    if (gguf_get_arr_type(ctx, id) != GGUF_TYPE_STRING) {
        return numbers(gguf_get_arr_type(ctx, id), gguf_get_arr_data(ctx, id), n);
    }
    py::list list(n);
    for (size_t i = 0; i < n; ++i) {
        list[i] = lossless_text(gguf_get_arr_str(ctx, id, i));
    }
    return list;
}

py::tuple read_gguf(const std::string & path) {
    const std::unique_ptr<FILE, int (*)(FILE *)> file(std::fopen(path.c_str(), "rb"), std::fclose);
    if (!file) {
        throw error(errc::file, path + ": cannot open: " + std::strerror(errno));
    }
    std::fseek(file.get(), 0, SEEK_END);
    const size_t file_size = size_t(std::max(0L, std::ftell(file.get())));
    std::rewind(file.get());
    const std::unique_ptr<gguf_context, void (*)(gguf_context *)> ctx(
        gguf_init_from_file_ptr(file.get(), {/*no_alloc=*/true, /*ctx=*/nullptr}), gguf_free);
    if (!ctx) {
        throw error(errc::format,
                    path + ": not a GGUF file, or its header is truncated or malformed; download it again");
    }
    py::dict metadata;
    for (int64_t i = 0; i < gguf_get_n_kv(ctx.get()); ++i) {
        metadata[lossless_text(gguf_get_key(ctx.get(), i))] = value(ctx.get(), i);
    }
    py::list tensors;
    for (int64_t i = 0; i < gguf_get_n_tensors(ctx.get()); ++i) {
        const char *    name   = gguf_get_tensor_name(ctx.get(), i);
        const int64_t * ne     = gguf_get_tensor_ne(ctx.get(), i);
        const size_t    size   = gguf_get_tensor_size(ctx.get(), i);
        const size_t    offset = gguf_get_data_offset(ctx.get()) + gguf_get_tensor_offset(ctx.get(), i);
        if (offset > file_size || size > file_size - offset) {
            throw error(errc::format, path + ": tensor " + name + ": expected " + std::to_string(size) +
                                          " bytes at offset " + std::to_string(offset) + ", the file has " +
                                          std::to_string(file_size) + "; it is truncated, download it again");
        }
        std::vector<int64_t> shape(ne, ne + GGML_MAX_DIMS);
        while (shape.size() > 1 && shape.back() == 1) {
            shape.pop_back();
        }
        const char * type = ggml_type_name(gguf_get_tensor_type(ctx.get(), i));
        tensors.append(py::make_tuple(lossless_text(name), shape, type, size));
    }
    return py::make_tuple(metadata, tensors);
}

}  // namespace

void bind_gguf(py::module_ & m) {
    m.def("read_gguf", read_gguf, py::arg("path"),
          "Metadata by key, and tensors (name, ggml-order shape, type, bytes).");
}

}  // namespace dflash2

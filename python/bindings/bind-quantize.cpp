#include <utility>

#include "bindings.h"
#include "engine/quantize.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

namespace {

// data: (rows, columns), imatrix: (columns,)
py::array_t<uint8_t> quantize_array(const float_array & data, const std::string & type, int32_t n_threads,
                                    const std::optional<float_array> & imatrix) {
    if (data.ndim() != 2) {
        throw error(errc::argument, "data: expected 2 dimensions (rows, columns), got " + std::to_string(data.ndim()));
    }
    if (imatrix && (imatrix->ndim() != 1 || imatrix->shape(0) != data.shape(1))) {
        throw error(errc::argument, "imatrix: expected " + std::to_string(data.shape(1)) +
                                        " values, one per column, got " + std::to_string(imatrix->size()));
    }
    const float *        weights  = imatrix ? imatrix->data() : nullptr;
    const auto           row_size = py::ssize_t(quantized_row_size(type, data.shape(1)));
    py::array_t<uint8_t> out({data.shape(0), row_size});
    uint8_t *            bytes = out.mutable_data();

    const py::gil_scoped_release release;
    quantize(data.data(), data.shape(0), data.shape(1), type, n_threads, bytes, weights);
    return out;
}

}  // namespace

void bind_quantize(py::module_ & m) {
    using named_shape = std::pair<std::string, std::vector<int64_t>>;

    m.def("quantize", quantize_array, py::arg("data"), py::arg("type"), py::arg("n_threads") = 1, py::kw_only(),
          py::arg("imatrix") = py::none(), "Quantizes (rows, columns) to (rows, bytes per row) with ggml.");
    m.def(
        "quantize_types",
        [](const std::string & ftype, const std::vector<named_shape> & named, int32_t n_embd, int32_t n_ff,
           int32_t n_layer, int32_t n_head, int32_t n_head_kv, int32_t head_dim, bool has_imatrix) {
            std::vector<tensor_shape> tensors;
            for (const auto & [name, ne] : named) {
                tensors.push_back({name, ne});
            }
            std::vector<std::optional<std::string>> types;
            for (std::string & type :
                 quantize_types(ftype, tensors, {n_embd, n_ff, n_layer, n_head, n_head_kv, head_dim}, has_imatrix)) {
                types.push_back(type.empty() ? std::nullopt : std::make_optional(std::move(type)));
            }
            return types;
        },
        py::arg("ftype"), py::arg("tensors"), py::kw_only(), py::arg("n_embd"), py::arg("n_ff"), py::arg("n_layer"),
        py::arg("n_head"), py::arg("n_head_kv"), py::arg("head_dim"), py::arg("has_imatrix") = false,
        "The type that llama-quantize gives each tensor (name, ggml-order shape); None: it keeps its type.");
}

}  // namespace dflash2

// The parts of the module _core. No logic here: arguments are converted, the GIL is released around long calls, and
// whatever holds model data is copied, so that no Python object can outlive what it points to.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "ggml_dflash2/drafter.h"

namespace dflash2 {

namespace py = pybind11;

// Both are C-contiguous; only lossless casts to the element type are accepted.
using float_array = py::array_t<float, py::array::c_style>;
using int_array   = py::array_t<int32_t, py::array::c_style>;

// Strings from model files need not be UTF-8.
inline py::str to_text(const std::string & bytes) {
    return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(bytes.data(), py::ssize_t(bytes.size()), "replace"));
}

// (n_rows, n_taps, n_embd)
float_array from_features(const features & f);

void bind_errors(py::module_ & m);
void bind_log(py::module_ & m);
void bind_core(py::module_ & m);
void bind_target(py::module_ & m);
void bind_draft(py::module_ & m);
void bind_engine(py::module_ & m);
void bind_gguf(py::module_ & m);
void bind_quantize(py::module_ & m);

}  // namespace dflash2

// The parts of the module _core. No logic here: arguments are converted, the GIL is released, results are copied.
#pragma once

#include <pybind11/pybind11.h>

namespace dflash2 {

namespace py = pybind11;

void bind_errors(py::module_ & m);
void bind_quantize(py::module_ & m);

}  // namespace dflash2

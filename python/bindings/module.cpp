#include "bindings.h"

PYBIND11_MODULE(_core, m) {
    m.doc()               = "Compiled part of dflash2.";
    m.attr("__version__") = DFLASH2_VERSION;
    dflash2::bind_errors(m);
    dflash2::bind_quantize(m);
}

#include "bindings.h"

// In this order: signatures in docstrings name only classes that are bound already.
PYBIND11_MODULE(_core, m) {
    m.doc()               = "Compiled part of dflash2.";
    m.attr("__version__") = DFLASH2_VERSION;
    dflash2::bind_errors(m);
    dflash2::bind_log(m);
    dflash2::bind_core(m);
    dflash2::bind_target(m);
    dflash2::bind_draft(m);
    dflash2::bind_engine(m);
    dflash2::bind_gguf(m);
    dflash2::bind_quantize(m);
}

// Exception classes, and the one place where errc becomes an exception class.
#include <array>
#include <exception>

#include "bindings.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

namespace {

constexpr int n_errc = int(errc::memory) + 1;

// Indexed by errc. Never freed: exceptions may outlive the module.
std::array<PyObject *, n_errc> exception_of;

// Named after the public package, where users import it from.
PyObject * add_exception(py::module_ & m, const char * name, const char * doc, const py::tuple & bases) {
    const std::string qualified = std::string("dflash2.") + name;
    PyObject *        type      = PyErr_NewExceptionWithDoc(qualified.c_str(), doc, bases.ptr(), nullptr);
    if (type == nullptr) {
        throw py::error_already_set();
    }
    m.add_object(name, type);
    return type;
}

}  // namespace

void bind_errors(py::module_ & m) {
    const auto base   = py::handle(add_exception(m, "DFlash2Error", "Base of the errors of this package.",
                                                 py::make_tuple(py::handle(PyExc_RuntimeError))));
    const auto value  = py::handle(PyExc_ValueError);
    const auto format = "A model file is malformed, truncated or not a DFlash 2 drafter.";
    const auto pair   = "Target and drafter do not fit, or the target lacks a needed ability.";

    exception_of[int(errc::file)]   = PyExc_OSError;
    exception_of[int(errc::format)] = add_exception(m, "ModelFormatError", format, py::make_tuple(base, value));
    exception_of[int(errc::incompatible)] =
        add_exception(m, "IncompatibleModelsError", pair, py::make_tuple(base, value));
    exception_of[int(errc::argument)] = PyExc_ValueError;
    exception_of[int(errc::context_full)] =
        add_exception(m, "ContextFullError", "No room is left in the target's context.", py::make_tuple(base));
    exception_of[int(errc::decode)] =
        add_exception(m, "DecodeError", "libllama or a ggml backend failed.", py::make_tuple(base));
    exception_of[int(errc::memory)] = PyExc_MemoryError;

    py::register_local_exception_translator([](std::exception_ptr p) {
        try {
            std::rethrow_exception(p);
        } catch (const error & e) {
            PyErr_SetObject(exception_of[int(e.code())], to_text(e.what()).ptr());
        }
    });
}

}  // namespace dflash2

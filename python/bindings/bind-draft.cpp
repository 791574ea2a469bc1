// The drafter: model file, interface, and the draft graph.
#include <algorithm>
#include <tuple>
#include <utility>

#include "bindings.h"
#include "ggml-backend.h"
#include "ggml_dflash2/error.h"
#include "ggml_dflash2/graph-drafter.h"
#include "ggml_dflash2/target.h"

namespace dflash2 {

float_array from_features(const features & f) {
    const size_t n_taps = f.tap.size();
    float_array  rows({size_t(f.n_rows), n_taps, size_t(f.n_embd)});
    float *      out = rows.mutable_data();
    for (int32_t i = 0; i < f.n_rows; ++i) {
        for (const float * tap : f.tap) {
            out = std::copy_n(tap + size_t(i) * f.n_embd, f.n_embd, out);
        }
    }
    return rows;
}

namespace {

void inject(drafter & d, int32_t seq, const float_array & rows, int32_t position) {
    if (rows.ndim() != 3) {
        throw error(errc::argument,
                    "features: expected 3 dimensions (n_rows, n_taps, n_embd), got " + std::to_string(rows.ndim()));
    }
    const size_t n_rows = rows.shape(0), n_taps = rows.shape(1), n_embd = rows.shape(2);

    std::vector<float> by_tap(rows.size());  // [n_embd, n_rows, n_taps]
    features           f;
    for (size_t t = 0; t < n_taps; ++t) {
        float * out = by_tap.data() + t * n_rows * n_embd;
        f.tap.push_back(out);
        for (size_t i = 0; i < n_rows; ++i) {
            out = std::copy_n(rows.data() + (i * n_taps + t) * n_embd, n_embd, out);
        }
    }
    f.n_embd   = int32_t(n_embd);
    f.n_rows   = int32_t(n_rows);
    f.position = position;
    const py::gil_scoped_release release;
    d.inject(seq, f);
}

using job_tuple = std::tuple<int32_t, token_id, int32_t>;  // seq, anchor, position

std::vector<lattice> draft(drafter & d, const std::vector<job_tuple> & jobs, int32_t n_draft) {
    std::vector<draft_job> list;
    for (const auto & [seq, anchor, position] : jobs) {
        list.push_back({seq, anchor, position});
    }
    const py::gil_scoped_release release;
    return d.draft(list, n_draft);
}

// A drafter written in Python.
class python_drafter final : public drafter {
  public:
    bool truncate(int32_t seq, int32_t n_keep) override {
        PYBIND11_OVERRIDE_PURE(bool, drafter, truncate, seq, n_keep);
    }

    void inject(int32_t seq, const features & f) override {
        const py::gil_scoped_acquire acquire;
        method("inject")(seq, from_features(f), f.position);
    }

    std::vector<lattice> draft(const std::vector<draft_job> & jobs, int32_t n_draft) override {
        const py::gil_scoped_acquire acquire;
        std::vector<job_tuple>       list;
        for (const draft_job & job : jobs) {
            list.emplace_back(job.seq, job.anchor, job.position);
        }
        const py::object result = method("draft")(list, n_draft);
        try {
            return result.cast<std::vector<lattice>>();
        } catch (const py::cast_error &) {
            throw py::type_error("Drafter.draft: expected a list of Lattice, got " +
                                 py::repr(result).cast<std::string>());
        }
    }

    int32_t n_seq() const override { PYBIND11_OVERRIDE_PURE(int32_t, drafter, n_seq, ); }

    int32_t max_draft() const override { PYBIND11_OVERRIDE_PURE(int32_t, drafter, max_draft, ); }

    int32_t context_window() const override { PYBIND11_OVERRIDE_PURE(int32_t, drafter, context_window, ); }

    const std::vector<int32_t> & target_layers() const override {
        const py::gil_scoped_acquire acquire;
        layers_ = method("target_layers")().cast<std::vector<int32_t>>();
        return layers_;
    }

  private:
    py::function method(const char * name) const {
        py::function f = py::get_override(static_cast<const drafter *>(this), name);
        if (!f) {
            py::pybind11_fail(std::string("Drafter.") + name + " is not implemented by the subclass");
        }
        return f;
    }

    mutable std::vector<int32_t> layers_;
};

py::dict hparams_dict(const draft_hparams & h) {
    py::dict d;
    d["n_layer"]          = h.n_layer;
    d["n_embd"]           = h.n_embd;
    d["n_ff"]             = h.n_ff;
    d["n_head"]           = h.n_head;
    d["n_head_kv"]        = h.n_head_kv;
    d["head_dim"]         = h.head_dim;
    d["n_rot"]            = h.n_rot;
    d["n_vocab"]          = h.n_vocab;
    d["n_ctx_train"]      = h.n_ctx_train;
    d["rms_eps"]          = h.rms_eps;
    d["rope_freq_base"]   = h.rope_freq_base;
    d["logit_scale"]      = h.logit_scale;
    d["logit_softcap"]    = h.logit_softcap;
    d["embedding_scale"]  = h.embedding_scale;
    d["causal"]           = h.causal;
    d["sliding_window"]   = h.sliding_window;
    d["is_sliding"]       = std::vector<bool>(h.is_sliding.begin(), h.is_sliding.end());
    d["block_size"]       = h.block_size;
    d["conv_kernel_size"] = h.conv_kernel_size;
    d["conv_group_size"]  = h.conv_group_size;
    d["selector_rank"]    = h.selector_rank;
    d["selector_top_k"]   = h.selector_top_k;
    d["mask_token_id"]    = h.mask_token_id;
    d["target_layers"]    = h.target_layers;
    d["context_window"]   = h.context_window();
    return d;
}

std::unique_ptr<graph_drafter> open_drafter(std::shared_ptr<const draft_model> model, const shared_tensors & shared,
                                            const graph_drafter_params & params) {
    const py::gil_scoped_release release;
    return std::make_unique<graph_drafter>(std::move(model), shared, params);
}

py::tuple operand_tuple(const graph_operand & o) {
    return py::make_tuple(o.type, py::tuple(py::cast(o.ne)), o.contiguous_rows);
}

py::tuple node_tuple(const graph_op & node) {
    py::list src;
    for (const graph_operand & o : node.src) {
        src.append(operand_tuple(o));
    }
    return py::make_tuple(node.op, operand_tuple(node.dst), py::tuple(src), py::tuple(py::cast(node.params)));
}

py::dict watched(const graph_drafter & d) {
    py::dict out;
    for (const auto & [name, node] : d.watched()) {
        const auto & ne    = node.ne;
        out[py::str(name)] = float_array(node.data.size(), node.data.data()).reshape({ne[3], ne[2], ne[1], ne[0]});
    }
    return out;
}

const char * device_kind(ggml_backend_dev_t device) {
    switch (ggml_backend_dev_type(device)) {
        case GGML_BACKEND_DEVICE_TYPE_CPU:
            return "cpu";
        case GGML_BACKEND_DEVICE_TYPE_GPU:
        case GGML_BACKEND_DEVICE_TYPE_IGPU:
            return "gpu";
        default:
            return "accelerator";
    }
}

py::list list_devices() {
    if (ggml_backend_dev_count() == 0) {
        ggml_backend_load_all();  // builds with backends as loadable modules
    }
    py::list devices;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        devices.append(py::make_tuple(to_text(ggml_backend_dev_name(device)),
                                      to_text(ggml_backend_dev_description(device)), device_kind(device)));
    }
    return devices;
}

}  // namespace

void bind_draft(py::module_ & m) {
    py::class_<draft_model, std::shared_ptr<draft_model>>(m, "DraftModel",
                                                          "Hyper-parameters and weights of a drafter GGUF.")
        .def(py::init([](const std::string & path, const std::string & device, bool plan_only) {
                 const py::gil_scoped_release release;
                 return std::make_shared<draft_model>(path, device, plan_only);
             }),
             py::arg("path"), py::arg("device") = "", py::kw_only(), py::arg("plan_only") = false)
        .def_property_readonly("path", [](const draft_model & d) { return to_text(d.path()); })
        .def_property_readonly("hparams", [](const draft_model & d) { return hparams_dict(d.hparams()); })
        .def_property_readonly("pairing",
                               [](const draft_model & d) {
                                   py::dict p;
                                   p["target_name"]    = to_text(d.pairing().target_name);
                                   p["target_n_layer"] = d.pairing().target_n_layer;
                                   p["vocab_hash"]     = d.pairing().vocab_hash;
                                   return p;
                               })
        .def_property_readonly("has_head", &draft_model::has_head)
        .def_property_readonly("has_embd", &draft_model::has_embd)
        .def_property_readonly("size_bytes", &draft_model::size_bytes);

    py::class_<drafter, python_drafter>(m, "Drafter", "Base class of drafters.")
        .def(py::init<>())
        .def("truncate", &drafter::truncate, py::arg("seq"), py::arg("n_keep"))
        .def("inject", inject, py::arg("seq"), py::arg("features"), py::arg("position"))
        .def("draft", draft, py::arg("jobs"), py::arg("n_draft"))
        .def("max_draft", &drafter::max_draft)
        .def("n_seq", &drafter::n_seq)
        .def("context_window", &drafter::context_window)
        .def("target_layers", &drafter::target_layers);

    py::class_<graph_drafter, drafter>(m, "GraphDrafter", "The draft graph on a ggml backend.")
        .def(py::init([](std::shared_ptr<draft_model> model, const target & tgt, int32_t n_ctx, int32_t n_threads,
                         bool kv_f32, std::optional<bool> top_k_by_groups) {
                 return open_drafter(
                     std::move(model), tgt.shared(),
                     {n_ctx > 0 ? n_ctx : tgt.n_ctx(), tgt.n_seq(), n_threads, kv_f32, top_k_by_groups});
             }),
             py::arg("model"), py::arg("target"), py::kw_only(), py::arg("n_ctx") = 0, py::arg("n_threads") = 1,
             py::arg("kv_f32") = false, py::arg("top_k_by_groups") = std::nullopt, py::keep_alive<1, 3>())
        .def(py::init(
                 [](std::shared_ptr<draft_model> model, int32_t n_ctx, int32_t n_seq, int32_t n_threads, bool kv_f32) {
                     return open_drafter(std::move(model), {}, {n_ctx, n_seq, n_threads, kv_f32, {}});
                 }),
             py::arg("model"), py::kw_only(), py::arg("n_ctx") = 4096, py::arg("n_seq") = 1, py::arg("n_threads") = 1,
             py::arg("kv_f32") = false)
        .def(
            "last_hidden",
            [](const graph_drafter & d, int32_t seq) {
                const std::vector<float> hidden = d.last_hidden(seq);
                const py::ssize_t        n_embd = d.n_embd();
                return float_array(hidden.size(), hidden.data())
                    .reshape({(py::ssize_t) hidden.size() / n_embd, n_embd});
            },
            py::arg("seq") = 0)
        .def(
            "ops",
            [](const graph_drafter & d, int32_t n_seq, int32_t n_draft) {
                py::list nodes;
                for (const graph_op & node : d.ops(n_seq, n_draft)) {
                    nodes.append(node_tuple(node));
                }
                return nodes;
            },
            py::arg("n_seq"), py::arg("n_draft"))
        .def("watch", &graph_drafter::watch, py::arg("names"))
        .def("watched", watched)
        .def_property_readonly("cache_bytes", &graph_drafter::cache_bytes)
        .def_property_readonly("memory", &graph_drafter::memory)
        .def_property_readonly("graphs_built", [](const graph_drafter & d) { return d.counts().n_built; })
        .def_property_readonly("graph_passes", [](const graph_drafter & d) { return d.counts().n_passes; });

    m.def("require_memory", require_memory, py::arg("uses"), py::kw_only(), py::arg("free") = nullptr,
          "Raises MemoryError when a device has less memory than is used on it.");
    m.def("free_memory", free_memory, py::arg("device"), "Free bytes of a device, as ggml says; 0: unknown.");
    m.def("list_devices", list_devices, "(name, description, kind) of the ggml backend devices.");
}

}  // namespace dflash2

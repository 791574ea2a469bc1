// The target and the round loop.
#include <utility>

#include "bindings.h"
#include "ggml_dflash2/engine.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

namespace {

accept_rule rule_from_name(const std::string & name) {
    if (name == "rejection") {
        return accept_rule::rejection;
    }
    if (name == "match") {
        return accept_rule::match;
    }
    throw error(errc::argument, "accept_rule '" + name + "': expected rejection or match");
}

const char * reason_name(finish_reason reason) {
    switch (reason) {
        case finish_reason::none:
            return nullptr;
        case finish_reason::stop:
            return "stop";
        case finish_reason::length:
            return "length";
        case finish_reason::context:
            return "context";
        case finish_reason::dead_end:
            return "dead_end";
    }
    return nullptr;
}

void poll_signals() {
    const py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) {
        throw py::error_already_set();
    }
}

template <typename T>
auto sampling(T sampling_params::* field) {
    return std::make_pair([field](const request & r) { return r.sampling.*field; },
                          [field](request & r, T value) { r.sampling.*field = value; });
}

}  // namespace

void bind_target(py::module_ & m) {
    const target_params defaults;

    py::class_<memory_use>(m, "MemoryUse", "Bytes for one purpose on one device.")
        .def_readonly("what", &memory_use::what)
        .def_readonly("device", &memory_use::device)
        .def_readonly("bytes", &memory_use::bytes)
        .def_readonly("mapped", &memory_use::mapped);

    py::class_<target>(m, "Target", "The target model on libllama.")
        .def(
            py::init([](const std::string & path, int32_t n_ctx, int32_t n_seq, int32_t n_batch, int32_t n_rollback,
                        int32_t n_threads, int32_t n_gpu_layers, std::optional<bool> backend_sampling, bool plan_only) {
                const py::gil_scoped_release release;
                return std::make_unique<target>(path, target_params{n_ctx, n_seq, n_batch, n_rollback, n_threads,
                                                                    n_gpu_layers, backend_sampling, plan_only});
            }),
            py::arg("path"), py::kw_only(), py::arg("n_ctx") = defaults.n_ctx, py::arg("n_seq") = defaults.n_seq,
            py::arg("n_batch") = defaults.n_batch, py::arg("n_rollback") = defaults.n_rollback,
            py::arg("n_threads") = defaults.n_threads, py::arg("n_gpu_layers") = defaults.n_gpu_layers,
            py::arg("backend_sampling") = defaults.backend_sampling, py::arg("plan_only") = false)
        .def_property_readonly("path", [](const target & t) { return to_text(t.path()); })
        .def_property_readonly("n_ctx", &target::n_ctx)
        .def_property_readonly("n_seq", &target::n_seq)
        .def_property_readonly("n_batch", &target::n_batch)
        .def_property_readonly("n_vocab", &target::n_vocab)
        .def_property_readonly("n_embd", &target::n_embd)
        .def_property_readonly("n_layer", &target::n_layer)
        .def_property_readonly("n_threads", &target::n_threads)
        .def_property_readonly("n_rollback", &target::n_rollback)
        .def_property_readonly("description", [](const target & t) { return to_text(t.description()); })
        .def_property_readonly("head_device", [](const target & t) { return to_text(t.head_device()); })
        .def_property_readonly("memory", &target::memory)
        .def_property_readonly("metadata",
                               [](const target & t) {
                                   py::dict d;
                                   for (const auto & [key, value] : t.metadata()) {
                                       d[to_text(key)] = to_text(value);
                                   }
                                   return d;
                               })
        .def_property_readonly("bos", &target::bos)
        .def_property_readonly("eos", &target::eos)
        .def_property_readonly("vocab_hash", &target::vocab_hash)
        .def("tokenize", &target::tokenize, py::arg("text"), py::kw_only(), py::arg("add_special") = true,
             py::arg("parse_special") = false, py::call_guard<py::gil_scoped_release>())
        .def(
            "piece", [](const target & t, token_id id, bool special) { return py::bytes(t.piece(id, special)); },
            py::arg("token"), py::kw_only(), py::arg("special") = false)
        .def("is_eog", &target::is_eog, py::arg("token"))
        .def("set_taps", &target::set_taps, py::arg("layers"))
        .def("decode", py::overload_cast<const std::vector<token_id> &, int32_t, int32_t, bool>(&target::decode),
             py::arg("tokens"), py::arg("position"), py::kw_only(), py::arg("seq") = 0, py::arg("all_logits") = false,
             py::call_guard<py::gil_scoped_release>())
        .def(
            "logits", [](const target & t, int32_t row) { return float_array(t.n_vocab(), t.logits(row)); },
            py::arg("row"))
        .def("tapped", [](const target & t) { return from_features(t.tapped(0, t.n_rows())); })
        .def(
            "truncate", [](target & t, int32_t n_keep, int32_t seq) { t.truncate(seq, n_keep); }, py::arg("n_keep"),
            py::kw_only(), py::arg("seq") = 0);
}

void bind_engine(py::module_ & m) {
    const auto [get_temperature, set_temperature]       = sampling(&sampling_params::temperature);
    const auto [get_top_k, set_top_k]                   = sampling(&sampling_params::top_k);
    const auto [get_typical_p, set_typical_p]           = sampling(&sampling_params::typical_p);
    const auto [get_top_p, set_top_p]                   = sampling(&sampling_params::top_p);
    const auto [get_min_p, set_min_p]                   = sampling(&sampling_params::min_p);
    const auto [get_repeat_penalty, set_repeat_penalty] = sampling(&sampling_params::repeat_penalty);
    const auto [get_frequency, set_frequency]           = sampling(&sampling_params::frequency_penalty);
    const auto [get_presence, set_presence]             = sampling(&sampling_params::presence_penalty);
    const auto [get_grammar, set_grammar]               = sampling(&sampling_params::grammar);
    const auto [get_repeat_last_n, set_repeat_last_n]   = sampling(&sampling_params::repeat_last_n);
    const auto [get_seed, set_seed]                     = sampling(&sampling_params::seed);

    py::class_<request>(m, "Request", "What to generate and how.")
        .def(py::init<>())
        .def_readwrite("prompt", &request::prompt)
        .def_property("temperature", get_temperature, set_temperature)
        .def_property("top_k", get_top_k, set_top_k)
        .def_property("typical_p", get_typical_p, set_typical_p)
        .def_property("top_p", get_top_p, set_top_p)
        .def_property("min_p", get_min_p, set_min_p)
        .def_property("repeat_penalty", get_repeat_penalty, set_repeat_penalty)
        .def_property("frequency_penalty", get_frequency, set_frequency)
        .def_property("presence_penalty", get_presence, set_presence)
        .def_property("grammar", get_grammar, set_grammar)
        .def_property(
            "logit_bias",
            [](const request & r) {
                std::map<token_id, float> m;
                for (const logit_bias & b : r.sampling.biases) {
                    m[b.id] = b.bias;
                }
                return m;
            },
            [](request & r, const std::map<token_id, float> & m) {
                r.sampling.biases.clear();
                for (const auto & [id, bias] : m) {
                    r.sampling.biases.push_back({id, bias});
                }
            })
        .def_property("repeat_last_n", get_repeat_last_n, set_repeat_last_n)
        .def_property("seed", get_seed, set_seed)
        .def_readwrite("max_tokens", &request::max_tokens)
        .def_readwrite("stop", &request::stop)
        .def_readwrite("n_draft_max", &request::n_draft_max)
        .def_readwrite("ignore_eos", &request::ignore_eos);

    py::class_<emitted>(m, "Token", "One emitted token.")
        .def_readonly("id", &emitted::id)
        .def_property_readonly("text", [](const emitted & t) { return to_text(t.text); })
        .def_readonly("from_draft", &emitted::from_draft);

    py::class_<progress>(m, "Progress", "What one step did for one request.")
        .def_readonly("id", &progress::id)
        .def_readonly("tokens", &progress::tokens)
        .def_property_readonly("finish_reason", [](const progress & p) { return reason_name(p.reason); });

    py::class_<engine> cls(m, "Engine", "The lossless round loop.");
    cls.def(py::init([](target & tgt, drafter * dft, int32_t n_draft_max, float p_min, float draft_temperature,
                        const std::string & rule, std::function<double()> clock) {
                engine_params params;
                params.n_draft_max       = n_draft_max;
                params.p_min             = p_min;
                params.draft_temperature = draft_temperature;
                params.rule              = rule_from_name(rule);
                params.clock             = std::move(clock);
                return std::make_unique<engine>(tgt, dft, params);
            }),
            py::arg("target"), py::arg("drafter").none(true), py::kw_only(), py::arg("n_draft_max") = -1,
            py::arg("p_min") = 0.0f, py::arg("draft_temperature") = 1.0f, py::arg("accept_rule") = "rejection",
            py::arg("clock") = nullptr, py::keep_alive<1, 2>(), py::keep_alive<1, 3>())
        .def("submit", &engine::submit, py::arg("request"))
        .def(
            "step", [](engine & e) { return e.step(poll_signals); }, py::call_guard<py::gil_scoped_release>())
        .def("cancel", &engine::cancel, py::arg("id"))
        .def_property_readonly("idle", &engine::idle)
        .def_property_readonly("n_draft_max", &engine::n_draft_max)
        .def(
            "request_stats", [](const engine & e, int64_t id) { return stats(e.request_stats(id)); }, py::arg("id"))
        .def_property_readonly("total_stats", &engine::total_stats);
#ifdef DFLASH2_BENCH
    cls.def("set_synthetic_acceptance", &engine::set_synthetic_acceptance, py::arg("rates"));
#endif
}

}  // namespace dflash2

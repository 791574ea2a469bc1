// Pure logic: the lattice, its walks, verification, random numbers, text and counters.

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "bindings.h"
#include "core/text.h"
#include "core/verify.h"
#include "core/walk.h"
#include "ggml_dflash2/error.h"
#include "ggml_dflash2/stats.h"

namespace dflash2 {

namespace {

using pairs = std::vector<std::pair<token_id, float>>;

law to_law(const pairs & p) {
    law l;
    for (const auto & [id, prob] : p) {
        l.push_back({id, prob});
    }
    return l;
}

pairs from_law(const law & l) {
    pairs p;
    for (const token_prob & t : l) {
        p.emplace_back(t.id, t.p);
    }
    return p;
}

std::pair<std::vector<token_id>, std::vector<pairs>> from_path(const draft_path & path) {
    std::vector<pairs> q;
    std::transform(path.q.begin(), path.q.end(), std::back_inserter(q), from_law);
    return {path.token, q};
}

random_stream stream_from_name(const std::string & name) {
    if (name == "draft") {
        return random_stream::draft;
    }
    if (name == "accept") {
        return random_stream::accept;
    }
    if (name == "residual") {
        return random_stream::residual;
    }
    throw error(errc::argument, "stream '" + name + "': expected draft, accept or residual");
}

lattice make_lattice(const int_array & cand, const float_array & score) {
    const bool fits = cand.ndim() == 2 && score.ndim() == 3 && cand.shape(1) > 0 && score.shape(0) == cand.shape(0) &&
                      score.shape(1) == cand.shape(1) && score.shape(2) == cand.shape(1);
    if (!fits) {
        throw error(errc::argument, "lattice: expected cand (n_pos, top_k) and score (n_pos, top_k, top_k)");
    }
    lattice lat;
    lat.n_pos = int32_t(cand.shape(0));
    lat.top_k = int32_t(cand.shape(1));
    lat.cand.assign(cand.data(), cand.data() + cand.size());
    lat.score.assign(score.data(), score.data() + score.size());
    validate(lat, INT32_MAX);
    return lat;
}

std::pair<int32_t, token_id> verify_path(const std::vector<token_id> & tokens, const std::vector<pairs> & q,
                                         const std::function<pairs(int32_t)> & p, uint64_t seed, uint32_t sequence,
                                         uint32_t position) {
    if (tokens.size() != q.size()) {
        throw error(errc::argument, "q: expected one law per token (" + std::to_string(tokens.size()) + "), got " +
                                        std::to_string(q.size()));
    }
    draft_path path{tokens, {}};
    std::transform(q.begin(), q.end(), std::back_inserter(path.q), to_law);
    law           current;
    const law_at  at = [&](int32_t i) -> const law & { return current = to_law(p(i)); };
    const verdict v  = verify_rejection(path, at, random_source(seed, sequence), position);
    return {v.n_accept, v.next};
}

}  // namespace

void bind_core(py::module_ & m) {
    py::class_<lattice>(m, "Lattice", "Candidates and edge scores of one draft pass.")
        .def(py::init(&make_lattice), py::arg("cand"), py::arg("score"))
        .def_property_readonly("cand", [](const lattice & l) { return int_array({l.n_pos, l.top_k}, l.cand.data()); })
        .def_property_readonly(
            "score", [](const lattice & l) { return float_array({l.n_pos, l.top_k, l.top_k}, l.score.data()); });

    py::class_<stats>(m, "Stats", "Counters of speculative decoding.")
        .def_readonly("n_prompt", &stats::n_prompt)
        .def_readonly("n_cached", &stats::n_cached)
        .def_readonly("n_generated", &stats::n_generated)
        .def_readonly("n_rounds", &stats::n_rounds)
        .def_readonly("n_drafts", &stats::n_drafts)
        .def_readonly("n_drafted", &stats::n_drafted)
        .def_readonly("n_verified", &stats::n_verified)
        .def_readonly("n_accepted", &stats::n_accepted)
        .def_readonly("accepted_per_pos", &stats::accepted_per_pos)
        .def_readonly("ms_prompt", &stats::ms_prompt)
        .def_readonly("ms_draft", &stats::ms_draft)
        .def_readonly("ms_verify", &stats::ms_verify)
        .def_readonly("ms_sample", &stats::ms_sample)
        .def_property_readonly("mean_accept_length", &stats::mean_accept_length)
        .def_property_readonly("acceptance_rate", &stats::acceptance_rate);

    py::class_<text_stream>(m, "TextStream", "Token pieces to text that can be shown.")
        .def(py::init<std::vector<std::string>>(), py::arg("stop") = std::vector<std::string>())
        .def(
            "push", [](text_stream & t, const py::bytes & piece) { return to_text(t.push(piece)); }, py::arg("piece"))
        .def("finish", [](text_stream & t) { return to_text(t.finish()); })
        .def_property_readonly("stopped", &text_stream::stopped);

    m.def(
        "uniform",
        [](uint64_t seed, uint32_t sequence, const std::string & stream, uint32_t position, uint32_t round) {
            return random_source(seed, sequence).uniform(stream_from_name(stream), position, round);
        },
        py::arg("seed"), py::arg("sequence"), py::arg("stream"), py::arg("position"), py::arg("round") = 0);
    m.def("draw", [](const pairs & l, double u) { return draw(to_law(l), u); }, py::arg("law"), py::arg("u"));
    m.def(
        "residual", [](const pairs & p, const pairs & q) { return from_law(residual(to_law(p), to_law(q))); },
        py::arg("p"), py::arg("q"));
    m.def(
        "walk_greedy", [](const lattice & l, float p_min) { return from_path(walk_greedy(l, p_min)); },
        py::arg("lattice"), py::arg("p_min") = 0.0f);
    m.def(
        "walk_sample",
        [](const lattice & l, float temperature, uint64_t seed, uint32_t sequence, uint32_t position, uint32_t round) {
            return from_path(walk_sample(l, temperature, random_source(seed, sequence), position, round));
        },
        py::arg("lattice"), py::arg("temperature"), py::arg("seed"), py::arg("sequence"), py::arg("position"),
        py::arg("round") = 0);
    m.def("verify_rejection", verify_path, py::arg("tokens"), py::arg("q"), py::arg("p"), py::arg("seed"),
          py::arg("sequence"), py::arg("position"));
}

}  // namespace dflash2

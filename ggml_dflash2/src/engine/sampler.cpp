#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "ggml_dflash2/error.h"

namespace dflash2 {

namespace {

void check(const sampling_params & s) {
    const auto require = [](bool ok, const char * name, const char * expected, double got) {
        if (!ok) {
            throw error(errc::argument, std::string(name) + ": expected " + expected + ", got " + std::to_string(got));
        }
    };
    require(std::isfinite(s.temperature) && s.temperature >= 0.0f, "temperature", "a number >= 0", s.temperature);
    require(s.top_k >= 0, "top_k", "0 (off) or more", s.top_k);
    require(s.top_p > 0.0f && s.top_p <= 1.0f, "top_p", "a number in (0, 1]", s.top_p);
    require(s.min_p >= 0.0f && s.min_p < 1.0f, "min_p", "a number in [0, 1)", s.min_p);
    require(std::isfinite(s.repeat_penalty) && s.repeat_penalty > 0.0f, "repeat_penalty", "a number > 0",
            s.repeat_penalty);
    require(s.repeat_last_n >= -1, "repeat_last_n", "-1 (context), 0 (off) or more", s.repeat_last_n);
}

}  // namespace

law_sampler::law_sampler(const target & tgt, const request & req)
    : chain_(llama_sampler_chain_init({/*no_perf =*/true})), n_vocab_(tgt.n_vocab()) {
    const sampling_params & s = req.sampling;
    check(s);
    const auto add = [&](llama_sampler * sampler) {
        llama_sampler_chain_add(chain_.get(), sampler);
        plain_ = false;
    };
    if (req.ignore_eos) {
        std::vector<llama_logit_bias> bias;
        for (token_id id = 0; id < n_vocab_; ++id) {
            if (tgt.is_eog(id)) {
                bias.push_back({id, -INFINITY});
            }
        }
        add(llama_sampler_init_logit_bias(n_vocab_, (int32_t) bias.size(), bias.data()));
    }
    if (s.repeat_penalty != 1.0f && s.repeat_last_n != 0) {
        add(llama_sampler_init_penalties(n_vocab_, s.repeat_last_n < 0 ? tgt.n_ctx() : s.repeat_last_n,
                                         s.repeat_penalty, 0.0f, 0.0f));
    }
    greedy_ = s.temperature == 0.0f;
    if (greedy_) {
        return;
    }
    if (s.top_k > 0) {
        add(llama_sampler_init_top_k(s.top_k));
    }
    if (s.top_p < 1.0f) {
        add(llama_sampler_init_top_p(s.top_p, 1));
    }
    if (s.min_p > 0.0f) {
        add(llama_sampler_init_min_p(s.min_p, 1));
    }
    add(llama_sampler_init_temp(s.temperature));
}

void law_sampler::apply(const float * logits) {
    data_.resize(n_vocab_);
    for (int32_t id = 0; id < n_vocab_; ++id) {
        data_[id] = {id, logits[id], 0.0f};
    }
    cur_ = {data_.data(), data_.size(), -1, false};
    llama_sampler_apply(chain_.get(), &cur_);
}

token_id law_sampler::argmax(const float * logits) {
    token_id best  = 0;
    float    value = logits[0];
    if (plain_) {
        for (int32_t id = 1; id < n_vocab_; ++id) {
            if (logits[id] > value) {
                best  = id;
                value = logits[id];
            }
        }
    } else {
        apply(logits);
        best  = cur_.data[0].id;
        value = cur_.data[0].logit;
        for (size_t i = 1; i < cur_.size; ++i) {
            const llama_token_data & d = cur_.data[i];
            if (d.logit > value || (d.logit == value && d.id < best)) {
                best  = d.id;
                value = d.logit;
            }
        }
    }
    if (!std::isfinite(value)) {
        throw error(errc::decode, "the target's logits are not finite; check the target file and its quantization");
    }
    return best;
}

const law & law_sampler::distribution(const float * logits) {
    apply(logits);
    float max = -INFINITY;
    for (size_t i = 0; i < cur_.size; ++i) {
        max = std::max(max, cur_.data[i].logit);
    }
    double sum = 0.0;
    law_.resize(cur_.size);
    for (size_t i = 0; i < cur_.size; ++i) {
        law_[i] = {cur_.data[i].id, std::exp(cur_.data[i].logit - max)};
        sum += law_[i].p;
    }
    if (!std::isfinite(max) || !std::isfinite(sum)) {
        throw error(errc::decode, "the target's logits are not finite; check the target file and its quantization");
    }
    for (token_prob & t : law_) {
        t.p = (float) (t.p / sum);
    }
    return law_;
}

void law_sampler::accept(token_id id) {
    llama_sampler_accept(chain_.get(), id);
}

}  // namespace dflash2

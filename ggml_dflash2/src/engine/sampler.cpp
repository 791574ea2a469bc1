#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "ggml_dflash2/error.h"

namespace dflash2 {

namespace {

constexpr size_t MANY_BIASES = 64;

void check(const sampling_params & s, int32_t n_vocab) {
    const auto require = [](bool ok, const char * name, const char * expected, double got) {
        if (!ok) {
            throw error(errc::argument, std::string(name) + ": expected " + expected + ", got " + std::to_string(got));
        }
    };
    require(s.temperature == 0.0f || (std::isfinite(s.temperature) && s.temperature >= 1e-3f), "temperature",
            "0 or a number >= 0.001", s.temperature);
    require(s.top_k >= 0, "top_k", "0 (off) or more", s.top_k);
    require(s.typical_p > 0.0f && s.typical_p <= 1.0f, "typical_p", "a number in (0, 1]", s.typical_p);
    require(s.top_p > 0.0f && s.top_p <= 1.0f, "top_p", "a number in (0, 1]", s.top_p);
    require(s.min_p >= 0.0f && s.min_p < 1.0f, "min_p", "a number in [0, 1)", s.min_p);
    require(std::isfinite(s.repeat_penalty) && s.repeat_penalty > 0.0f, "repeat_penalty", "a number > 0",
            s.repeat_penalty);
    require(std::isfinite(s.frequency_penalty), "frequency_penalty", "a finite number", s.frequency_penalty);
    require(std::isfinite(s.presence_penalty), "presence_penalty", "a finite number", s.presence_penalty);
    require(s.repeat_last_n >= -1, "repeat_last_n", "-1 (context), 0 (off) or more", s.repeat_last_n);
    for (const logit_bias & b : s.biases) {
        require(b.id >= 0 && b.id < n_vocab, "logit_bias", "a token id of the target", b.id);
        require(!std::isnan(b.bias) && b.bias < INFINITY, "logit_bias", "a finite number or -inf", b.bias);
    }
}

error not_finite() {
    return error(errc::decode, "the target's logits are not finite; check the target file and its quantization");
}

[[noreturn]] void throw_no_law(const float * logits, int32_t n) {
    const row_peak peak = find_peak(logits, n);
    if (peak.index < 0 && !peak.nan) {
        throw dead_end();
    }
    throw not_finite();
}

// Ids are distinct.
std::vector<logit_bias> collect_biases(const target & tgt, const request & req) {
    std::map<token_id, float> sum;
    for (const logit_bias & b : req.sampling.biases) {
        sum[b.id] += b.bias;
    }
    for (token_id id = 0; req.ignore_eos && id < tgt.n_vocab(); ++id) {
        if (tgt.is_eog(id)) {
            sum[id] = -INFINITY;
        }
    }
    std::vector<logit_bias> out;
    for (const auto & [id, bias] : sum) {
        out.push_back({id, bias});
    }
    return out;
}

}  // namespace

law_sampler::law_sampler(const target & tgt, const request & req)
    : chain_(llama_sampler_chain_init({/*no_perf =*/true})),
      biases_(collect_biases(tgt, req)),
      n_vocab_(tgt.n_vocab()) {
    const sampling_params & s = req.sampling;
    check(s, n_vocab_);
    const auto add = [&](llama_sampler * sampler) { llama_sampler_chain_add(chain_.get(), sampler); };
    if (!s.grammar.empty()) {
        grammar_.reset(llama_sampler_init_grammar(tgt.vocab(), s.grammar.c_str(), "root"));
        plain_ = false;
        if (!grammar_) {
            throw error(errc::argument, "grammar: not valid GBNF with a start symbol \"root\"");
        }
    }
    plain_               = plain_ && biases_.size() <= MANY_BIASES;
    const bool penalties = s.repeat_penalty != 1.0f || s.frequency_penalty != 0.0f || s.presence_penalty != 0.0f;
    if (penalties && s.repeat_last_n != 0) {
        plain_ = false;
        add(llama_sampler_init_penalties(n_vocab_, s.repeat_last_n < 0 ? tgt.n_ctx() : s.repeat_last_n,
                                         s.repeat_penalty, s.frequency_penalty, s.presence_penalty));
    }
    for (const logit_bias & b : biases_) {
        raises_ |= b.bias > 0.0f;
    }
    greedy_      = s.temperature == 0.0f;
    temperature_ = s.temperature;
    n_best_      = !plain_ ? 0 : greedy_ ? 1 : s.top_k;
    n_best_ += n_best_ > 0 ? (int32_t) biases_.size() : 0;
    const bool whole_rows = plain_ && !greedy_ && s.top_k == 0 && s.typical_p == 1.0f;
    wide_                 = whole_rows && s.top_p == 1.0f && s.min_p == 0.0f;
    likely_               = whole_rows && !wide_;
    top_p_                = s.top_p;
    min_p_                = s.min_p;
    if (!greedy_) {
        if (s.top_k > 0) {
            add(llama_sampler_init_top_k(s.top_k));
        }
        if (s.typical_p < 1.0f) {
            add(llama_sampler_init_typical(s.typical_p, 1));
        }
        if (s.top_p < 1.0f && !likely_) {
            add(llama_sampler_init_top_p(s.top_p, 1));
        }
        if (s.min_p > 0.0f) {
            add(llama_sampler_init_min_p(s.min_p, 1));
        }
        add(llama_sampler_init_temp(s.temperature));
    }
    for (const token_id id : req.prompt) {
        llama_sampler_accept(chain_.get(), id);
    }
}

// A chain that begins with top_p or min_p: what the first of them leaves, by quicker ways than those of the samplers,
// which would list and sort the vocabulary.
void law_sampler::list_likely(const float * logits) {
    logits = biased(logits);
    if (top_p_ < 1.0f) {
        if (!find_nucleus(logits, n_vocab_, top_p_, best_)) {
            throw_no_law(logits, n_vocab_);
        }
    } else {
        const row_peak peak = find_peak(logits, n_vocab_);
        if (peak.nan || !std::isfinite(peak.value)) {
            throw_no_law(logits, n_vocab_);
        }
        find_above(logits, n_vocab_, peak.value + std::log(min_p_), best_);
    }
    data_.clear();
    for (const int32_t id : best_) {
        data_.push_back({id, logits[id], 0.0f});
    }
}

// What the chain has to look at.
void law_sampler::list(const logit_row & row) {
    data_.clear();
    bool nan = false;
    if (n_best_ > 0 && !row.id) {
        nan = find_top(row.logit, row.n, n_best_, best_);
        for (const int32_t id : best_) {
            data_.push_back({id, row.logit[id], 0.0f});
        }
    } else {
        for (int32_t i = 0; i < row.n; ++i) {
            data_.push_back({row.id ? row.id[i] : i, row.logit[i], 0.0f});
            nan |= row.id && row.logit[i] != row.logit[i];
        }
    }
    if (nan) {
        throw not_finite();
    }
    const bool listed = n_best_ > 0 || row.id;
    for (const logit_bias & b : biases_) {
        const auto is_it = [&b](const llama_token_data & d) { return d.id == b.id; };
        const auto it    = listed ? std::find_if(data_.begin(), data_.end(), is_it) : data_.begin() + b.id;
        if (it != data_.end()) {
            it->logit += b.bias;
        } else if (b.bias > 0.0f) {  // lowered, it stays behind those that are listed
            data_.push_back({b.id, row.logit[b.id] + b.bias, 0.0f});
        }
    }
    cur_ = {data_.data(), data_.size(), -1, false};
    if (grammar_) {
        llama_sampler_apply(grammar_.get(), &cur_);
    }
    // What is excluded must not reach the chain: typical sampling would compute 0 log 0.
    const auto excluded = [](const llama_token_data & d) { return d.logit == -INFINITY; };
    data_.erase(std::remove_if(data_.begin(), data_.end(), excluded), data_.end());
}

void law_sampler::apply() {
    if (data_.empty()) {
        throw dead_end();
    }
    cur_ = {data_.data(), data_.size(), -1, false};
    llama_sampler_apply(chain_.get(), &cur_);
}

token_id law_sampler::argmax(const logit_row & row) {
    if (plain_ && biases_.empty() && !row.id) {
        const row_peak peak = find_peak(row.logit, row.n);
        if (peak.nan || !std::isfinite(peak.value)) {
            throw not_finite();
        }
        return peak.index;
    }
    list(row);
    apply();
    token_id best  = cur_.data[0].id;
    float    value = cur_.data[0].logit;
    bool     nan   = false;
    for (size_t i = 1; i < cur_.size; ++i) {
        const llama_token_data & d = cur_.data[i];
        nan |= d.logit != d.logit;
        if (d.logit > value || (d.logit == value && d.id < best)) {
            best  = d.id;
            value = d.logit;
        }
    }
    if (nan || !std::isfinite(value)) {
        throw not_finite();
    }
    return best;
}

const float * law_sampler::biased(const float * logits) {
    if (biases_.empty()) {
        return logits;
    }
    row_.assign(logits, logits + n_vocab_);
    for (const logit_bias & b : biases_) {
        row_[b.id] += b.bias;
    }
    return row_.data();
}

const target_law & law_sampler::whole(const float * logits) {
    logits = biased(logits);
    if (!wide_law_.assign(logits, n_vocab_, temperature_)) {
        throw_no_law(logits, n_vocab_);
    }
    return wide_law_;
}

const target_law & law_sampler::distribution(const logit_row & row) {
    if (wide_) {
        return whole(row.logit);
    }
    if (likely_) {
        list_likely(row.logit);
    } else {
        list(row);
    }
    apply();
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
        throw not_finite();
    }
    for (token_prob & t : law_) {
        t.p = (float) (t.p / sum);
    }
    return view_;
}

void law_sampler::accept(token_id id) {
    if (grammar_) {
        llama_sampler_accept(grammar_.get(), id);
    }
    llama_sampler_accept(chain_.get(), id);
}

}  // namespace dflash2

#include "engine/taps.h"

#include <set>

namespace dflash2 {

namespace {

// general.architecture of the models that set layer inputs in llama.cpp 0c1e57098 (2026-10-01). Asking any other model
// for them aborts the process.
const std::set<std::string> TAPPABLE = {
    "bailingmoe3",  "deepseek4", "gemma4",     "gpt-oss",        "hunyuan-dense", "hunyuan_vl",
    "lfm2",         "lfm2moe",   "llama",      "mimo2",          "minimax-01",    "minimax-m2",
    "muse-glimmer", "nanbeige",  "nemotron_h", "nemotron_h_moe", "qwen3",         "qwen35",
    "qwen35moe",    "qwen3moe",  "qwen3next",  "qwen4exp",
};

// Those that also expose the output of the last layer, as layer n_layer.
const std::set<std::string> TAPPABLE_LAST = {"deepseek4", "mimo2", "nemotron_h", "nemotron_h_moe"};

}  // namespace

std::string tap_refusal(const std::string & arch, int32_t n_layer, int32_t layer) {
    if (!TAPPABLE.count(arch)) {
        return "libllama does not expose hidden states of architecture " + arch;
    }
    const int32_t last = TAPPABLE_LAST.count(arch) ? n_layer : n_layer - 1;
    if (layer < 0 || layer > last) {
        return "the drafter taps layer input " + std::to_string(layer) + ", the target has 0 to " +
               std::to_string(last) + " (" + std::to_string(n_layer) + " layers)";
    }
    return "";
}

}  // namespace dflash2

// Text and tokens.
#include <algorithm>

#include "draft/gguf-file.h"
#include "engine/target-impl.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

const llama_vocab * target::vocab() const {
    return impl_->vocab;
}

std::vector<token_id> target::tokenize(const std::string & text, bool add_special, bool parse_special) const {
    std::vector<token_id> out(text.size() + 8);
    int32_t n = llama_tokenize(impl_->vocab, text.data(), (int32_t) text.size(), out.data(), (int32_t) out.size(),
                               add_special, parse_special);
    if (n < 0 && n != INT32_MIN) {
        out.resize(-n);
        n = llama_tokenize(impl_->vocab, text.data(), (int32_t) text.size(), out.data(), (int32_t) out.size(),
                           add_special, parse_special);
    }
    if (n < 0) {
        throw error(errc::argument, "tokenize: the text is too long");
    }
    out.resize(n);
    return out;
}

std::string target::piece(token_id id, bool special) const {
    if (id < 0 || id >= n_vocab()) {
        throw error(errc::argument, "piece: token " + std::to_string(id) + " is outside the vocabulary of " +
                                        std::to_string(n_vocab()));
    }
    std::string out(16, '\0');
    int32_t     n = llama_token_to_piece(impl_->vocab, id, out.data(), (int32_t) out.size(), 0, special);
    if (n < 0) {
        out.resize(-n);
        n = llama_token_to_piece(impl_->vocab, id, out.data(), (int32_t) out.size(), 0, special);
    }
    out.resize(std::max(n, 0));
    return out;
}

bool target::is_eog(token_id id) const {
    return llama_vocab_is_eog(impl_->vocab, id);
}

token_id target::bos() const {
    return llama_vocab_bos(impl_->vocab);
}

token_id target::eos() const {
    return llama_vocab_eos(impl_->vocab);
}

static void fnv1a(uint64_t & hash, const void * data, size_t size) {
    for (size_t i = 0; i < size; ++i) {
        hash = (hash ^ ((const uint8_t *) data)[i]) * 0x100000001b3ULL;
    }
}

uint64_t target::vocab_hash() const {
    const gguf_file file(impl_->path);
    const auto      texts = file.find_string_array("tokenizer.ggml.tokens");
    const auto      types = file.has("tokenizer.ggml.token_type") ? file.get_int_array("tokenizer.ggml.token_type")
                                                                  : std::vector<int32_t>();
    uint64_t        hash  = 0xcbf29ce484222325ULL;
    for (size_t i = 0; texts && i < texts->size(); ++i) {
        const uint8_t type = i < types.size() ? (uint8_t) types[i] : 1;
        fnv1a(hash, (*texts)[i].c_str(), (*texts)[i].size() + 1);
        fnv1a(hash, &type, 1);
    }
    return hash;
}

}  // namespace dflash2

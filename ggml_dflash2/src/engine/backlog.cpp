#include "engine/backlog.h"

#include <cstddef>

namespace dflash2 {

static constexpr size_t most_bytes = 32u << 20;

void feature_backlog::add(const features & f) {
    if (n_rows_ == 0) {
        tap_.resize(f.tap.size());
        n_embd_   = f.n_embd;
        position_ = f.position;
    }
    for (size_t i = 0; i < tap_.size(); ++i) {
        tap_[i].insert(tap_[i].end(), f.tap[i], f.tap[i] + (size_t) f.n_rows * f.n_embd);
    }
    n_rows_ += f.n_rows;
}

bool feature_backlog::full() const {
    return (size_t) n_rows_ * n_embd_ * tap_.size() * sizeof(float) > most_bytes;
}

features feature_backlog::rows(int32_t first) const {
    features f;
    for (const std::vector<float> & tap : tap_) {
        f.tap.push_back(tap.data() + (size_t) first * n_embd_);
    }
    f.n_embd   = n_embd_;
    f.n_rows   = n_rows_ - first;
    f.position = position_ + first;
    return f;
}

void feature_backlog::clear() {
    for (std::vector<float> & tap : tap_) {
        tap.clear();
    }
    n_rows_ = 0;
}

}  // namespace dflash2

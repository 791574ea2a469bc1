#include "core/row-scan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

// One version for each width of vector that the machine may have.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define WIDE_LOOPS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE_LOOPS
#endif

namespace dflash2 {

namespace {

constexpr int32_t N_LANE  = 64;
constexpr int32_t N_PIECE = 1024;  // values of a row that are summed or compared at once
constexpr float   LOWEST  = -INFINITY;

struct piece_peak {
    float value;
    bool  nan;
};

WIDE_LOOPS piece_peak peak_of(const float * x, int32_t n) {
    float   top[N_LANE];
    int32_t nan[N_LANE] = {};
    std::fill_n(top, N_LANE, LOWEST);
    int32_t i = 0;
    for (; i + N_LANE <= n; i += N_LANE) {
        for (int32_t j = 0; j < N_LANE; ++j) {
            const float v = x[i + j];
            top[j]        = v > top[j] ? v : top[j];
            nan[j] |= v != v;
        }
    }
    for (; i < n; ++i) {
        top[0] = x[i] > top[0] ? x[i] : top[0];
        nan[0] |= x[i] != x[i];
    }
    piece_peak p = {top[0], nan[0] != 0};
    for (int32_t j = 1; j < N_LANE; ++j) {
        p.value = std::max(p.value, top[j]);
        p.nan |= nan[j] != 0;
    }
    return p;
}

// What softmax takes the exponential of, cut where exp_of is 0.
inline float exponent(float x, float max, float inverse) {
    const float y = (x - max) * inverse;
    return y > -88.0f ? y : -88.0f;
}

// exp(y) for -88 <= y <= 0: Cephes' expf, within 2 ulp; 0 below -87.7, where 2^k is.
inline float exp_of(float y) {
    const float round = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the low bits
    const float t     = y * 1.44269504088896341f + round;
    const float k     = t - round;
    const float r     = (y - k * 0.693359375f) + k * 2.12194440e-4f;
    float       p     = 1.9875691500e-4f;
    p                 = p * r + 1.3981999507e-3f;
    p                 = p * r + 8.3334519073e-3f;
    p                 = p * r + 4.1665795894e-2f;
    p                 = p * r + 1.6666665459e-1f;
    p                 = p * r + 5.0000001201e-1f;
    p                 = p * r * r + r + 1.0f;
    int32_t bits;
    std::memcpy(&bits, &t, sizeof(bits));
    bits = (int32_t) ((uint32_t) (bits - 0x4B400000 + 127) << 23);  // 2^k
    float scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    return p * scale;
}

WIDE_LOOPS double sum_of_exp(const float * x, int32_t n, float max, float inverse) {
    float w[N_PIECE];
    for (int32_t i = 0; i < n; ++i) {
        w[i] = exponent(x[i], max, inverse);
    }
    for (int32_t i = 0; i < n; ++i) {  // a loop of its own, else the cut becomes a branch
        w[i] = exp_of(w[i]);
    }
    std::fill(w + n, w + N_PIECE, 0.0f);
    for (int32_t half = N_PIECE / 2; half >= N_LANE; half /= 2) {
        for (int32_t i = 0; i < half; ++i) {
            w[i] += w[i + half];
        }
    }
    double total = 0.0;
    for (int32_t i = 0; i < N_LANE; ++i) {
        total += w[i];
    }
    return total;
}

// y = x - max, not below -88; w = exp(y).
WIDE_LOOPS void weights_of(const float * x, int32_t n, float max, float * y, float * w) {
    for (int32_t i = 0; i < n; ++i) {
        y[i] = exponent(x[i], max, 1.0f);
    }
    for (int32_t i = 0; i < n; ++i) {
        w[i] = exp_of(y[i]);
    }
}

}  // namespace

row_peak find_peak(const float * x, int32_t n) {
    row_peak peak;
    int32_t  piece = -1;
    peak.value     = LOWEST;
    for (int32_t i = 0; i < n; i += N_PIECE) {
        const piece_peak p = peak_of(x + i, std::min(N_PIECE, n - i));
        peak.nan |= p.nan;
        if (p.value > peak.value) {
            peak.value = p.value;
            piece      = i;
        }
    }
    if (piece >= 0) {
        peak.index = (int32_t) (std::find(x + piece, x + n, peak.value) - x);
    }
    return peak;
}

bool find_top(const float * x, int32_t n, int32_t k, std::vector<int32_t> & index) {
    constexpr int32_t  n_piece = 256;
    std::vector<float> peaks;
    bool               nan = false;
    for (int32_t i = 0; i < n; i += n_piece) {
        const piece_peak p = peak_of(x + i, std::min(n_piece, n - i));
        peaks.push_back(p.value);
        nan |= p.nan;
    }
    // k pieces reach the k-th largest peak, so nothing below it is among the k largest values.
    float least = LOWEST;
    if ((size_t) k <= peaks.size()) {
        std::vector<float> sorted = peaks;
        std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<float>());
        least = sorted[k - 1];
    }
    index.clear();
    for (size_t piece = 0; piece < peaks.size(); ++piece) {
        if (peaks[piece] >= least) {
            const int32_t first = (int32_t) piece * n_piece;
            for (int32_t i = first; i < std::min(first + n_piece, n); ++i) {
                if (x[i] >= least && x[i] > LOWEST) {
                    index.push_back(i);
                }
            }
        }
    }
    if (index.size() > (size_t) k) {
        const auto before = [x](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; };
        std::nth_element(index.begin(), index.begin() + k, index.end(), before);
        index.resize(k);
        std::sort(index.begin(), index.end());
    }
    return nan;
}

double peak_gap(const float * x, int32_t n) {
    std::vector<int32_t> top;
    if (find_top(x, n, 2, top) || top.empty()) {
        return std::numeric_limits<double>::quiet_NaN();
    }
    return top.size() > 1 ? std::abs(double(x[top[0]]) - x[top[1]]) : std::numeric_limits<double>::infinity();
}

void find_above(const float * x, int32_t n, float least, std::vector<int32_t> & index) {
    index.clear();
    for (int32_t i = 0; i < n; i += N_PIECE) {
        const int32_t end = std::min(i + N_PIECE, n);
        if (peak_of(x + i, end - i).value >= least) {
            for (int32_t j = i; j < end; ++j) {
                if (x[j] >= least) {
                    index.push_back(j);
                }
            }
        }
    }
}

// A histogram over distances from the peak finds the slice where the sum reaches p; only that slice is sorted.
bool find_nucleus(const float * x, int32_t n, float p, std::vector<int32_t> & index) {
    constexpr int32_t n_unit  = 16;  // slices of a unit
    constexpr int32_t n_slice = 88 * n_unit + 1;
    const row_peak    peak    = find_peak(x, n);
    if (peak.nan || !std::isfinite(peak.value)) {
        return false;
    }
    const auto slice_of       = [](float y) { return (int32_t) (-y * n_unit); };
    double     share[n_slice] = {};
    float      y[N_PIECE], w[N_PIECE];
    for (int32_t i = 0; i < n; i += N_PIECE) {
        const int32_t size = std::min(N_PIECE, n - i);
        weights_of(x + i, size, peak.value, y, w);
        for (int32_t j = 0; j < size; ++j) {
            share[slice_of(y[j])] += w[j];
        }
    }
    const double goal = p * std::accumulate(share, share + n_slice, 0.0);
    double       sum  = 0.0;
    int32_t      last = 0;
    while (last + 1 < n_slice && sum + share[last] < goal) {
        sum += share[last++];
    }
    std::vector<int32_t> edge, all;
    find_above(x, n, peak.value - (float) (last + 2) / n_unit, all);
    index.clear();
    for (const int32_t i : all) {
        const int32_t slice = slice_of(exponent(x[i], peak.value, 1.0f));
        if (slice <= last) {
            (slice < last ? index : edge).push_back(i);
        }
    }
    std::sort(edge.begin(), edge.end(), [x](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
    for (size_t i = 0; i < edge.size() && sum < goal; ++i) {
        sum += exp_of(exponent(x[edge[i]], peak.value, 1.0f));
        index.push_back(edge[i]);
    }
    return true;
}

bool wide_law::assign(const float * x, int32_t n, float temperature) {
    const row_peak peak = find_peak(x, n);
    if (peak.nan || !std::isfinite(peak.value)) {
        return false;
    }
    x_       = x;
    n_       = n;
    max_     = peak.value;
    inverse_ = 1.0f / temperature;
    total_   = 0.0;
    sums_.clear();
    for (int32_t i = 0; i < n; i += N_PIECE) {
        sums_.push_back(sum_of_exp(x + i, std::min(N_PIECE, n - i), max_, inverse_));
        total_ += sums_.back();
    }
    return true;
}

float wide_law::weight(token_id id) const {
    return exp_of(exponent(x_[id], max_, inverse_));
}

double wide_law::prob(token_id id) const {
    return id >= 0 && id < n_ ? weight(id) / total_ : 0.0;
}

// The token where the running sum of weights reaches `goal`, with the weights of `instead` in place of their own.
token_id wide_law::pick(double goal, const law & instead) const {
    std::vector<double> change(sums_.size(), 0.0);
    for (const token_prob & t : instead) {
        change[t.id / N_PIECE] += t.p - (double) weight(t.id);
    }
    token_id last = -1;  // sums and single weights may differ in the last bits: the last one with any weight then
    double   sum  = 0.0;
    for (size_t piece = 0; piece < sums_.size(); ++piece) {
        const double next = sum + std::max(0.0, sums_[piece] + change[piece]);
        if (next < goal && piece + 1 < sums_.size()) {
            sum = next;
            continue;
        }
        const int32_t end = std::min<int32_t>(n_, (int32_t) (piece + 1) * N_PIECE);
        for (token_id id = (token_id) piece * N_PIECE; id < end; ++id) {
            const auto   same = [id](const token_prob & t) { return t.id == id; };
            const auto   it   = std::find_if(instead.begin(), instead.end(), same);
            const double w    = it != instead.end() ? it->p : weight(id);
            if (w > 0.0) {
                sum += w;
                last = id;
                if (sum >= goal) {
                    return id;
                }
            }
        }
        if (last >= 0) {
            return last;
        }
    }
    return -1;
}

token_id wide_law::draw(double u) const {
    return pick(u * total_, {});
}

token_id wide_law::draw_residual(const law & q, double u) const {
    law    left;
    double mass = total_;
    for (const token_prob & t : q) {
        const double w    = weight(t.id);
        const double rest = std::max(0.0, w - (double) t.p * total_);
        left.push_back({t.id, (float) rest});
        mass += left.back().p - w;
    }
    const token_id id = mass > 0.0 ? pick(u * mass, left) : -1;
    return id >= 0 ? id : draw(u);
}

}  // namespace dflash2

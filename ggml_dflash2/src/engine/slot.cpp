#include "engine/slot.h"

#include <algorithm>
#include <utility>

#include "engine/timer.h"

namespace dflash2 {

int32_t slot::shared_prefix(const std::vector<token_id> & prompt) const {
    const size_t most = std::min(held_.size(), prompt.size());
    return (int32_t) (std::mismatch(held_.begin(), held_.begin() + (ptrdiff_t) most, prompt.begin()).first -
                      held_.begin());
}

void slot::inject(const features & f) {
    dft_->inject(index_, f);
    n_seen_ = f.position + f.n_rows;
}

void slot::forget_features() {
    dft_->truncate(index_, 0);
    n_seen_ = 0;
}

// What no draft will see is dropped.
void slot::hand_over() {
    const int32_t window = dft_->context_window();
    int32_t       first  = 0;
    if (window > 0 && backlog_.n_rows() > window) {
        first = backlog_.n_rows() - window;
        forget_features();
    }
    if (backlog_.n_rows() > 0) {
        inject(backlog_.rows(first));
        backlog_.clear();
    }
}

// Cuts the drafter back to n_keep, or to the rows before it that are of use. Returns the first position that it has to
// see again.
int32_t slot::rewind_drafter(int32_t n_keep) {
    const int32_t window = dft_->context_window();
    const int32_t oldest = window > 0 ? std::max(0, n_keep - window) : 0;  // that a draft looks at
    const int32_t seen   = std::min(n_keep, n_seen_);
    if (seen > oldest && dft_->truncate(index_, seen)) {
        return n_seen_ = seen;
    }
    forget_features();
    return oldest;
}

// Cuts target and drafter back to what the prompt shares with the memory and returns its length. Plain requests leave
// the drafter behind; what it misses is decoded again for the first one that drafts.
int32_t slot::take_over(const sequence & next) {
    int32_t n_keep = std::min(shared_prefix(next.req.prompt), (int32_t) next.req.prompt.size() - 1);
    if (!tgt_.can_truncate(index_, n_keep)) {
        n_keep = 0;
    }
    if (backlog_.n_rows() > 0 && next.drafting() && n_keep > backlog_.position()) {
        hand_over();
    }
    backlog_.clear();
    if (dft_) {
        const int32_t seen = rewind_drafter(n_keep);
        if (next.drafting() && seen < n_keep) {
            n_keep = tgt_.can_truncate(index_, seen) ? seen : 0;
        }
        if (n_keep == 0) {
            forget_features();
        }
    }
    held_.clear();
    tgt_.truncate(index_, n_keep);
    return n_keep;
}

void slot::prefill(sequence & next, const std::function<void()> & poll, std::vector<emitted> & out) {
    const timer                   time(next.counters.ms_prompt);
    const std::vector<token_id> & prompt   = next.req.prompt;
    const int32_t                 n_prompt = (int32_t) prompt.size();
    const int32_t                 n_keep   = take_over(next);
    tgt_.set_row_cut(index_, next.n_best());

    // What no draft can see is not injected.
    int32_t first = n_keep;
    if (next.drafting() && dft_->context_window() > 0 && n_prompt - dft_->context_window() > n_keep) {
        first = n_prompt - dft_->context_window();
        forget_features();
    }
    std::vector<target_row> rows;
    for (int32_t i = n_keep; i < n_prompt; i += (int32_t) rows.size()) {
        if (poll) {
            poll();
        }
        rows.clear();
        for (int32_t j = i; j < n_prompt && (int32_t) rows.size() < tgt_.n_batch(); ++j) {
            rows.push_back({prompt[j], index_, j, j == n_prompt - 1});
        }
        tgt_.decode(rows);
        const int32_t end = i + (int32_t) rows.size();
        if (next.drafting() && end > first) {
            const int32_t skip = std::max(0, first - i);
            inject(tgt_.tapped(skip, end - i - skip));
        }
    }
    if (next.drafting()) {
        dft_->catch_up(index_);
    }
    next.counters.n_prompt = n_prompt;
    next.counters.n_cached = n_keep;
    next.tokens            = prompt;
    next.start(tgt_.row((int32_t) rows.size() - 1), out);
}

void slot::start(std::unique_ptr<sequence> seq, const std::function<void()> & poll, std::vector<emitted> & out) {
    try {
        prefill(*seq, poll, out);
    } catch (...) {
        seq->reason = finish_reason::stop;
        seq_        = std::move(seq);  // its counters can still be asked for
        forget();
        throw;
    }
    seq_ = std::move(seq);
    if (!running()) {
        held_ = seq_->tokens;
    }
}

void slot::catch_up() {
    const timer time(seq_->counters.ms_draft);
    hand_over();
    dft_->catch_up(index_);
}

slot::accepted slot::accept(const draft_path & path, int32_t n_drafted, accept_rule rule, int32_t first_row,
                            std::vector<emitted> & out) {
    const timer   time(seq_->counters.ms_sample);
    const verdict v = seq_->verify(path, rule, [&](int32_t row) { return tgt_.row(first_row + row); });
    return {v.n_accept, seq_->commit(path, n_drafted, v, out)};
}

void slot::keep(int32_t first_row, int32_t n_rows, bool put_off) {
    if (seq_->drafting()) {
        const timer    time(seq_->counters.ms_draft);
        const features f = tgt_.tapped(first_row, n_rows);
        if (put_off) {
            backlog_.add(f);
        } else {
            inject(f);
        }
        if (backlog_.full()) {
            hand_over();
        }
    }
    tgt_.truncate(index_, seq_->n());
    if (!running()) {
        held_ = seq_->tokens;
    }
}

void slot::stop() {
    if (running()) {
        held_        = seq_->tokens;
        seq_->reason = finish_reason::stop;
    }
}

void slot::forget() {
    stop();
    held_.clear();
    backlog_.clear();
    tgt_.truncate(index_, 0);
    if (dft_) {
        forget_features();
    }
}

}  // namespace dflash2

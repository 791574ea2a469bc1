// Log lines of libllama and ggml. They come from any thread, with or without the GIL, so they wait here until Python
// asks for them.
#include <deque>
#include <mutex>
#include <utility>

#include "bindings.h"
#include "llama.h"

namespace dflash2 {

namespace {

constexpr size_t max_lines = 4096;  // the oldest go first

struct log_queue {
    std::mutex                                         mutex;
    std::deque<std::pair<ggml_log_level, std::string>> lines;
};

// Never destroyed: backends log while the process exits.
log_queue & queue() {
    static log_queue & q = *new log_queue;
    return q;
}

void push(ggml_log_level level, const char * text, void *) noexcept try {
    log_queue &                       q = queue();
    const std::lock_guard<std::mutex> lock(q.mutex);
    const bool                        open = !q.lines.empty() && q.lines.back().second.back() != '\n';
    if (text == nullptr || *text == '\0') {
        return;
    }
    if (open && level == GGML_LOG_LEVEL_CONT) {
        q.lines.back().second += text;
        return;
    }
    if (q.lines.size() == max_lines) {
        q.lines.pop_front();
    }
    q.lines.emplace_back(level, text);
} catch (...) {
    // a line is lost when memory is out
}

// As in Python's logging. What is no warning is for debugging.
int python_level(ggml_log_level level) {
    return level == GGML_LOG_LEVEL_ERROR ? 40 : level == GGML_LOG_LEVEL_WARN ? 30 : 10;
}

}  // namespace

void bind_log(py::module_ & m) {
    llama_log_set(push, nullptr);

    m.def(
        "drain_log",
        [] {
            decltype(log_queue::lines) lines;
            {
                const std::lock_guard<std::mutex> lock(queue().mutex);
                lines.swap(queue().lines);
            }
            py::list result;
            for (const auto & [level, text] : lines) {
                result.append(py::make_tuple(python_level(level), to_text(text)));
            }
            return result;
        },
        "Log lines of libllama and ggml since the last call: (logging level, text).");
}

}  // namespace dflash2

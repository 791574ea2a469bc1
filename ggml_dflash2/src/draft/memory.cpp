#include "ggml_dflash2/memory.h"

#include <cstdio>
#include <map>

#include "ggml-backend.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

static std::string readable(size_t bytes) {
    char text[32];
    std::snprintf(text, sizeof(text), bytes < 10'000'000'000 ? "%.1f MB" : "%.0f MB", (double) bytes / 1e6);
    return text;
}

void add_use(std::vector<memory_use> & uses, const memory_use & use) {
    for (memory_use & u : uses) {
        if (u.what == use.what && u.device == use.device && u.mapped == use.mapped) {
            u.bytes += use.bytes;
            return;
        }
    }
    uses.push_back(use);
}

size_t free_memory(const std::string & device) {
    ggml_backend_dev_t dev  = ggml_backend_dev_by_name(device.c_str());
    size_t             free = 0, total = 0;
    if (dev) {
        ggml_backend_dev_memory(dev, &free, &total);
    }
    return free;
}

void require_memory(const std::vector<memory_use> & uses, const std::function<size_t(const std::string &)> & free) {
    struct sum {
        size_t      bytes = 0;
        std::string parts;
    };

    std::map<std::string, sum> devices;
    for (const memory_use & use : uses) {
        if (!use.mapped && use.bytes > 0) {
            sum & s = devices[use.device];
            s.bytes += use.bytes;
            s.parts += (s.parts.empty() ? "" : ", ") + use.what + " " + readable(use.bytes);
        }
    }
    for (const auto & [device, s] : devices) {
        const size_t room = free ? free(device) : free_memory(device);
        if (room > 0 && s.bytes > room) {
            throw error(errc::memory, "memory of " + device + ": " + readable(s.bytes) + " needed (" + s.parts + "), " +
                                          readable(room) +
                                          " free; lower n_ctx, n_parallel, n_batch or n_gpu_layers, or use a smaller "
                                          "file type");
        }
    }
}

}  // namespace dflash2

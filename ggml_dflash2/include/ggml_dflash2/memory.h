// What a target and a drafter take in memory. Both can be made to plan only: they say it before anything is allocated.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace dflash2 {

struct memory_use {
    std::string what;  // e.g. "draft K/V"
    std::string device;
    size_t      bytes  = 0;
    bool        mapped = false;  // pages of a file: the system takes them back when it needs them
};

// Adds to what has the same purpose and device.
void add_use(std::vector<memory_use> & uses, const memory_use & use);

// Free bytes of a device as ggml says, which on the CPU is all of its memory; 0: unknown.
size_t free_memory(const std::string & device);

// Throws errc::memory when a device has less than is used on it, mapped pages left out.
void require_memory(const std::vector<memory_use> & uses, const std::function<size_t(const std::string &)> & free = {});

}  // namespace dflash2

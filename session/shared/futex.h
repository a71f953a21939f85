// Sleeping on a word in shared memory until another process changes it. The non-private futex calls of Linux: they work
// across processes whatever address each has mapped the word at.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tributary {

// Sleeps while *word == expected, at most `timeout`. May wake without a reason: the caller looks at its condition
// again. Returns false only when the time ran out.
bool futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::nanoseconds timeout);

// Wakes all threads that sleep on `word`.
void futex_wake_all(const std::atomic<std::uint32_t>& word);

}  // namespace tributary

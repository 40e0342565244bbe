// SPDX-License-Identifier: Apache-2.0

// What one input may take: processor time of its thread, and memory that is held at once, by its
// size. An input that takes more ends the run as a crash does.
//
// Honest inputs take about a microsecond and a hundred bytes for each of their bytes, instrumented.
// The bounds are ten times as much and a constant for what libraries make on first use; time is the
// processor's, and wide, since a busy machine makes it slower, too. One thread at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

// As <sanitizer/allocator_interface.h> has them.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*taken)(const volatile void*,
                                                                       size_t),
                                                         void (*freed)(const volatile void*));
extern "C" size_t __sanitizer_get_allocated_size(const volatile void* place);

namespace hutch {

class RunBudget {
 public:
  explicit RunBudget(size_t size)
      : size_(size), most_bytes_((int64_t{32} << 20) + int64_t{1000} * static_cast<int64_t>(size)) {
    static const bool hooked = __sanitizer_install_malloc_and_free_hooks(Taken, Freed) != 0;
    if (!hooked) Fail("memory cannot be counted", 0, 0);
    held_at_first_ = held_;
    peak_ = held_at_first_;
    begun_ = Now();
  }
  ~RunBudget() {
    const double most = 5.0 + 10e-6 * static_cast<double>(size_);
    const double took = Now() - begun_;
    if (took > most) Fail("seconds", took, most);
    const int64_t bytes = peak_ - held_at_first_;
    if (bytes > most_bytes_)
      Fail("bytes", static_cast<double>(bytes), static_cast<double>(most_bytes_));
  }
  RunBudget(const RunBudget&) = delete;
  RunBudget& operator=(const RunBudget&) = delete;

 private:
  static void Taken(const volatile void*, size_t size) {
    const int64_t held = held_ += static_cast<int64_t>(size);
    if (held > peak_) peak_ = held;
  }
  static void Freed(const volatile void* place) {
    if (place != nullptr) held_ -= static_cast<int64_t>(__sanitizer_get_allocated_size(place));
  }
  static double Now() {
    timespec now;
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  [[noreturn]] void Fail(const char* what, double took, double most) const {
    std::fprintf(stderr, "budget: %.3g %s for an input of %zu bytes, at most %.3g\n", took, what,
                 size_, most);
    std::abort();
  }

  static inline std::atomic<int64_t> held_ = 0;
  static inline std::atomic<int64_t> peak_ = 0;
  size_t size_;
  int64_t most_bytes_;
  int64_t held_at_first_ = 0;
  double begun_ = 0;
};

}  // namespace hutch

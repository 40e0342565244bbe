// SPDX-License-Identifier: Apache-2.0

// A mutex and a condition variable whose use clang checks at compile time, and the annotations that
// say which lock guards what. They are those of std, at no cost: libstdc++ has no annotations.
//
// The build with sanitizers is by clang with -Werror=thread-safety; to other compilers the
// annotations are empty. https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define HUTCH_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define HUTCH_THREAD_ATTRIBUTE(x)
#endif

// ---- of types
#define CAPABILITY(name) HUTCH_THREAD_ATTRIBUTE(capability(name))
#define SCOPED_CAPABILITY HUTCH_THREAD_ATTRIBUTE(scoped_lockable)
// ---- of members
#define GUARDED_BY(lock) HUTCH_THREAD_ATTRIBUTE(guarded_by(lock))
// ---- of functions and lambdas: what their callers hold, do not hold, or get
#define REQUIRES(...) HUTCH_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) HUTCH_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) HUTCH_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define RELEASE(...) HUTCH_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS HUTCH_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace hutch {

class CAPABILITY("mutex") Mutex {
 public:
  void Lock() ACQUIRE() { mutex_.lock(); }
  void Unlock() RELEASE() { mutex_.unlock(); }
  std::mutex& native() { return mutex_; }  // for CondVar

 private:
  std::mutex mutex_;
};

// Holds a mutex while it lives.
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Leaves a mutex that is held, while it lives.
class SCOPED_CAPABILITY MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) RELEASE(mutex) : mutex_(mutex) { mutex_.Unlock(); }
  ~MutexUnlock() RELEASE() NO_THREAD_SAFETY_ANALYSIS { mutex_.Lock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

// std::condition_variable for a Mutex. There are no waits with a predicate: a loop reads what is
// guarded where the analysis sees that the lock is held.
class CondVar {
 public:
  void Wait(Mutex& mutex) REQUIRES(mutex) {
    Adopted lock(mutex);
    changed_.wait(lock.lock);
  }
  std::cv_status WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline)
      REQUIRES(mutex) {
    Adopted lock(mutex);
    return changed_.wait_until(lock.lock, deadline);
  }
  void NotifyOne() { changed_.notify_one(); }
  void NotifyAll() { changed_.notify_all(); }

 private:
  // The lock in the form that std takes, which is left held.
  struct Adopted {
    explicit Adopted(Mutex& mutex) : lock(mutex.native(), std::adopt_lock) {}
    ~Adopted() { lock.release(); }
    std::unique_lock<std::mutex> lock;
  };

  std::condition_variable changed_;
};

}  // namespace hutch

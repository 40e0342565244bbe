// SPDX-License-Identifier: Apache-2.0

// One process's connection to one agent: sends messages, and gives each that comes to the thread
// that waits for it, or to the connection's Receiver.
//
// Thread-safe, without a thread of its own: a thread that waits reads the connection and hands the
// others what is theirs. One lock, Connection::Lock, guards the connection and what is built on it:
// Reports, HeldLeases, InFlightCalls. When the agent is gone, or does not answer (agent_watch.h),
// every wait ends with kUnavailable. Not usable after fork() in the child.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "client/agent_watch.h"
#include "client/lease.h"
#include "wire/clock.h"
#include "wire/error.h"
#include "wire/fd.h"
#include "wire/message.h"
#include "wire/thread_annotations.h"

namespace hutch {

// How long to wait for an agent that is behind, with what would leave a call with wrong limits.
inline constexpr auto kTellPatience = std::chrono::seconds(1);

// What Connection::Lock holds, as the analysis knows it: one name in all classes that share it, for
// it would take the mutex of one object, reached by two ways, for two.
inline constexpr struct CAPABILITY("mutex") ConnectionLock {
} connection_lock;

Error ErrorFrom(const Failed& failed);

class Connection {
 public:
  // Takes the messages that no Converse waits for. All is called under the lock, on the thread that
  // reads. What OnMessage throws breaks the connection.
  class Receiver {
   public:
    virtual void OnMessage(uint64_t request, ReceivedMessage received) = 0;
    virtual void OnLost() = 0;  // no message will come any more

   protected:
    ~Receiver() = default;
  };
  class Lock;
  class Unlock;
  using Done = std::function<bool()>;  // called under the lock

  // Throws kUnavailable when nobody listens, kVersionMismatch.
  Connection(const std::string& socket, long connect_uid, Receiver& receiver);

  Fd TakeLeaseTable() { return std::move(lease_table_); }  // a memfd, see lease_table.h; once
  pid_t pid() const { return pid_; }                       // of the process that connected
  int fd() const { return socket_.get(); }
  // In a forked child, once and as the last thing done with it: while the child had the connection
  // too, the agent would not see its owner's end.
  void Abandon() { socket_.reset(); }
  bool broken() const { return broken_; }
  static Error LostError();
  // Of the host, from 0 to 1, as of the latest lease.
  double pressure() const { return pressure_.load(std::memory_order_relaxed); }
  void SetPressure(double pressure) { pressure_.store(pressure, std::memory_order_relaxed); }

  uint64_t NextRequest() { return next_request_++; }
  // Sends a request and gives `handle`, outside the lock, each message that answers it until it
  // returns true. `begin`, if any, is called under the lock before it is sent, when Deliver() finds
  // the request.
  void Converse(const Message& request, uint64_t id, Clock::time_point deadline,
                const CallHooks& hooks, const std::function<bool(ReceivedMessage&)>& handle,
                const std::function<void()>& begin = nullptr) EXCLUDES(connection_lock);
  // Gives the thread that converses about `request` a message as if it had come. Not, if none does.
  void Deliver(uint64_t request, ReceivedMessage received) REQUIRES(connection_lock);
  // Returns false at the deadline.
  bool WaitFor(Clock::time_point deadline, const CallHooks& hooks, const Done& done)
      REQUIRES(connection_lock);
  void Send(const Message& message);
  // Never throws. It may get lost where the agent does not read for so long.
  void Tell(const Message& message, Clock::duration patience = {});
  // A lease that came and that no call waits for any more.
  void GiveBack(const Message& message);

  // Reads what has come, until `enough`, unless another thread waits for it.
  void ReadIfFree(const Done& enough) REQUIRES(connection_lock);
  // Reads all that has come.
  void Read() REQUIRES(connection_lock);
  // To be called while a thread waits for the agent: asks from time to time whether it is there.
  // `late`: by how much this thread was woken too late. Throws when the agent does not answer.
  void CheckAgent(Clock::duration late) REQUIRES(connection_lock);

 private:
  void WakeReader();
  struct Pending {
    std::deque<ReceivedMessage> arrived;
  };

  void ShakeHands();
  void Break();
  void Drain(const Done& enough) REQUIRES(connection_lock);
  void Dispatch(ReceivedMessage received) REQUIRES(connection_lock);
  // A part of WaitFor() each, for at most `wait`: reads, or waits for the thread that does. Throw
  // kCancelled.
  void WaitAndRead(Clock::duration wait, const CallHooks& hooks, const Done& done)
      REQUIRES(connection_lock);
  void WaitForReader(Clock::duration wait, const CallHooks& hooks, const Done& done)
      REQUIRES(connection_lock);
  void WaitForChange(Clock::duration wait) REQUIRES(connection_lock) NO_THREAD_SAFETY_ANALYSIS {
    changed_.WaitUntil(mutex_, Clock::now() + wait);
  }
  [[noreturn]] void GiveUpAgent() REQUIRES(connection_lock);

  Receiver& receiver_;
  Fd socket_;
  Fd lease_table_;
  pid_t pid_;
  std::atomic<uint64_t> next_request_{1};
  std::atomic<bool> broken_{false};
  std::atomic<double> pressure_{0};
  Fd wake_;  // an eventfd that wakes the thread that reads
  Mutex mutex_;
  CondVar changed_;
  bool reading_ GUARDED_BY(connection_lock) = false;  // a thread does, outside the lock
  AgentWatch watch_ GUARDED_BY(connection_lock);
  std::map<uint64_t, Pending*> pending_ GUARDED_BY(connection_lock);  // by request
};

// Holds the lock while it lives.
class SCOPED_CAPABILITY Connection::Lock {
 public:
  explicit Lock(Connection& connection) ACQUIRE(connection_lock) NO_THREAD_SAFETY_ANALYSIS
      : mutex_(connection.mutex_) {
    mutex_.Lock();
  }
  ~Lock() RELEASE() NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Mutex& mutex_;
};

// Leaves the lock, which is held, while it lives.
class SCOPED_CAPABILITY Connection::Unlock {
 public:
  explicit Unlock(Connection& connection) RELEASE(connection_lock) NO_THREAD_SAFETY_ANALYSIS
      : mutex_(connection.mutex_) {
    mutex_.Unlock();
  }
  ~Unlock() RELEASE() NO_THREAD_SAFETY_ANALYSIS { mutex_.Lock(); }
  Unlock(const Unlock&) = delete;
  Unlock& operator=(const Unlock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace hutch

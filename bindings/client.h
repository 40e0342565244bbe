// SPDX-License-Identifier: Apache-2.0

// The client, as Python calls it. Every wait releases the GIL and takes it back only to run the
// caller's callbacks and signal handlers. Thread contract: everything here needs the GIL.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/python.h"
#include "bindings/result.h"
#include "client/client.h"
#include "client/stop_notice.h"
#include "wire/sha256.h"
#include "wire/thread_annotations.h"

namespace hutch {

// The eventfd is made when a wait first needs it.
class CancelToken {
 public:
  void Cancel() {
    const MutexLock lock(mutex_);
    cancelled_ = true;
    if (fd_) Signal();
  }
  bool cancelled() const { return cancelled_; }
  int fd() const {
    const MutexLock lock(mutex_);
    if (!fd_) {
      fd_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      if (!fd_) ThrowErrno("make an eventfd");
      if (cancelled_) Signal();
    }
    return fd_.get();
  }

 private:
  void Signal() const REQUIRES(mutex_) {
    const uint64_t one = 1;
    if (::write(fd_.get(), &one, sizeof one) < 0) return;  // a full counter is readable, too
  }

  mutable Mutex mutex_;
  mutable Fd fd_ GUARDED_BY(mutex_);
  std::atomic<bool> cancelled_{false};
};

struct FunctionBlob {
  explicit FunctionBlob(const py::bytes& data);

  // IdentityOf() with this meta data. Cached for the latest objects, since a warm call takes only
  // as long as a few SHA-256 of what is sent with it.
  const Sha256Digest& IdentityWith(const py::bytes& meta, uint64_t policy, bool shared) const;

  Blob blob;
  Sha256Digest digest;
  std::array<uint64_t, 2> code{};  // the digest's beginning

 private:
  struct Known {
    py::bytes meta;
    uint64_t policy;
    bool shared;
    Sha256Digest identity;
  };
  static constexpr size_t kMostKnown = 4;
  mutable std::vector<Known> known_;
};

// Memory of `hutch.empty`, or of a program that cells may execute. The arrays that start in one are
// found by address, under the GIL.
class SharedMemory {
 public:
  SharedMemory(size_t size, bool executable) : size_(size) {
    try {
      segment_ = std::make_shared<Segment>(size);
      if (executable) segment_->MakeExecutable();
      data_ = segment_->Map();
    } catch (const Error& error) {
      Raise(error);
    }
    Places()[data_] = this;
  }
  ~SharedMemory() { Places().erase(data_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }

  // The segment that holds these bytes and no others, so that lending it shows a cell nothing else.
  static std::shared_ptr<Segment> Of(std::string_view bytes) {
    const auto found = Places().find(bytes.data());
    if (found == Places().end() || found->second->size_ != bytes.size()) return nullptr;
    return found->second->segment_;
  }

 private:
  static std::unordered_map<const char*, SharedMemory*>& Places() {
    static auto* places = new std::unordered_map<const char*, SharedMemory*>();
    return *places;
  }

  size_t size_;
  std::shared_ptr<Segment> segment_;
  char* data_ = nullptr;
};

// What holds for every call of a function.
struct CallTerms {
  CallLimits limits;
  uint64_t calls_of_cell = 0;  // 0: a fresh cell for each
  double age_of_cell_sec = 0;
  uint64_t policy = 0;
  bool network = false;
};

// A call's bytes, and the Python objects that own them.
struct CallBytes {
  // `of_session`: its cell is loaded for no call, so the request has no identity.
  CallBytes(const py::bytes& meta, const py::object& function, const py::bytes& arguments,
            const py::sequence& buffers, const CallTerms& terms, Clock::time_point begun,
            bool of_session = false);

  CallRequest request;
  std::array<py::object, 3> owned;
  std::vector<py::buffer_info> exported;
};

// What a call prints, as it comes, with the GIL: 0 is stdout, 1 stderr.
using PyOutput = std::function<void(int stream, const py::bytes& text)>;

// What makes calls in turns, and keeps its client alive.
class PyTurns {
 public:
  virtual ~PyTurns();
  PyTurns(const PyTurns&) = delete;
  PyTurns& operator=(const PyTurns&) = delete;

  // A call in turns: see Turns. `dialogue`: as of PySession::Call(), but for what is asked.
  void Begin(std::unique_ptr<CallBytes> bytes, PyOutput output, const py::object& dialogue,
             const CancelToken* cancel);
  // The seconds until the next one though nothing came, (data, body size) of what is asked, or
  // None: the call is over.
  py::object Turn();
  bool Answer(uint64_t number, const py::object& answer);  // bytes or None
  void StopClock(bool stop) { turns().StopClock(stop); }
  bool Cancel();
  int turn_fd();
  bool waits_at_end() { return turns().waits_at_end(); }
  CallRecord End();

 protected:
  explicit PyTurns(std::shared_ptr<Client> client);
  virtual Turns& turns() = 0;
  const std::shared_ptr<Client>& client() const { return client_; }
  void Forget();  // what a call in turns uses. REQUIRES: nothing comes of it

 private:
  struct Begun;

  std::shared_ptr<Client> client_;
  std::unique_ptr<Begun> begun_;  // outlives its use by turns()
};

// One call of a pool, in turns. In a forked child it is the parent's: nothing becomes of it.
class PyCall final : public PyTurns {
 public:
  PyCall(const std::shared_ptr<Client>& client, std::string key)
      : PyTurns(client), call_(client->MakeCall(std::move(key))) {}
  ~PyCall() override;

  void Close();

 private:
  Turns& turns() override { return call_->turns(); }

  const pid_t owner_ = ::getpid();
  std::unique_ptr<PoolCall> call_;
};

// A session of a client.
class PySession final : public PyTurns {
 public:
  PySession(const std::shared_ptr<Client>& client, const std::string& key, uint64_t idle_ms,
            const std::string& id);

  // `dialogue(asks, data, body size, stop_clock) -> bytes or None`, or None: see Dialogue.
  CallRecord Call(CallRequest request, const CancelToken* cancel, const PyOutput& output,
                  const py::object& dialogue);
  // (data, body size) of what is asked next, or None: see Lease::Exchange().
  py::object Exchange(const py::bytes& answer);
  double TimeLeft() const;  // infinity: see Session
  bool HasEnded();
  bool IsUnsettled();
  void Settle();
  void Interrupt() { session_->Interrupt(); }
  void TakeBackInterrupt() { session_->TakeBackInterrupt(); }
  bool Restart();
  // Of its commands, on any thread: see Session.
  bool SendCommand(const std::vector<int>& descriptors) {
    return session_->SendCommand(descriptors);
  }
  void LookForCommands() { session_->LookForCommands(); }
  void CountUse() { session_->CountUse(); }
  // One that has run for so long. `ending`: as an Outcome has its status.
  void TellCommand(uint64_t id, const std::string& ending, const std::string& limit, double run_sec,
                   double cpu_sec, uint64_t policy);
  // In place of a result of a call that its end has ended, and whether that was during a call;
  // None: nobody knows how it ended.
  std::optional<std::pair<CallResult, bool>> LastEnd(uint64_t since);
  void Close();
  // In a forked child: the session is the parent's.
  void Abandon() { [[maybe_unused]] const Session* parents = session_.release(); }
  const Session& session() const { return *session_; }

 private:
  Turns& turns() override { return session_->turns(); }

  std::unique_ptr<Session> session_;
};

class PyClient {
 public:
  PyClient(const std::string& socket, long uid);

  int pid() const { return Live()->pid(); }
  double pressure() const { return client_ ? client_->pressure() : 0; }

  py::dict Prepare(const py::dict& spec, uint64_t timeout_ms, const py::object& progress,
                   bool no_pool);
  uint64_t Warm(const std::string& key, int64_t cells, uint64_t timeout_ms);
  CallRecord Call(const std::string& key, const CallRequest& request, const CancelToken* cancel,
                  const PyOutput& output);
  // `dialogue`: as of PySession::Call().
  CallRecord CallWithDialogue(const std::string& key, CallRequest request,
                              const CancelToken* cancel, const PyOutput& output,
                              const py::object& dialogue);

  // ---- background calls: no thread waits for each of them
  uint64_t Start(const std::string& key, const py::bytes& meta, const py::object& function,
                 const py::bytes& arguments, const py::sequence& buffers, const CallTerms& terms,
                 bool output, double begun);
  void Cancel(uint64_t call);
  py::list Next(double patience_sec);
  CallResult Conclude(OpenCall& open);
  void EndBackgroundCalls() { background_.reset(); }

  std::unique_ptr<PyCall> MakeCall(const std::string& key) const {
    return std::make_unique<PyCall>(Live(), key);
  }
  std::unique_ptr<PySession> MakeSession(const std::string& key, uint64_t idle_ms,
                                         const std::string& id) const;
  std::string Ask(const std::string& what, uint64_t timeout_ms);
  void Abandon();
  void Close();

 private:
  std::shared_ptr<Client> Live() const;

  std::shared_ptr<Client> client_;
  std::shared_ptr<Client> background_;  // while background calls may be in flight
};

class PyStopNotice {
 public:
  PyStopNotice(const std::string& socket, long uid);

  int fd() const { return notice_->fd(); }
  py::object Read();  // milliseconds, or None
  void Close() { notice_->Close(); }

 private:
  std::unique_ptr<StopNotice> notice_;
};

// What Python's time.monotonic() said; 0: nothing.
Clock::time_point TimePoint(double monotonic_sec);

}  // namespace hutch

// SPDX-License-Identifier: Apache-2.0

// One call on one leased cell: sends it, polls its socket and its output with the deadline, and
// decides what became of it.
//
// A Lease is the exclusive use of a cell. Destroying it closes our ends; the agent kills the cell
// when it gets LeaseEnded, or when this process ends. One thread at a time.
#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "client/output.h"
#include "client/segment.h"
#include "wire/cell_frame.h"
#include "wire/clock.h"
#include "wire/fd.h"
#include "wire/memfd.h"
#include "wire/sha256.h"
#include "wire/values.h"

namespace hutch {

// Bytes placed once and sent with many calls: inline when small, else in a sealed memfd.
class Blob {
 public:
  explicit Blob(std::string bytes);
  const std::string& bytes() const { return bytes_; }
  int memfd() const { return memfd_.get(); }  // -1: inline
  size_t size() const { return size_; }

 private:
  std::string bytes_;
  size_t size_;
  Fd memfd_;
};

// A large part of the arguments. `segment`: the one whose content it is, which is lent as it is.
struct Buffer {
  explicit Buffer(std::string_view content, std::shared_ptr<Segment> holder = nullptr)
      : bytes(content), segment(std::move(holder)) {}
  std::string_view bytes;
  std::shared_ptr<Segment> segment;
  bool is_bytes = false;  // a Python bytes object: read-only
};

// Stops the clock of the call's wall time, and has it go on.
using StopClock = std::function<void(bool stop)>;

// What a call says, and, with `asks`, asks for, while it runs: `data` (bindings/decode.h) of which
// the first `body_size` bytes are the body. Returns the pickle that answers it, which is sent if it
// asked; nullopt: the call is to end. A clock that was stopped goes on when it returns.
using Dialogue = std::function<std::optional<std::string>(
    bool asks, const std::string& data, size_t body_size, const StopClock& stop_clock)>;

// What a call asks, as a Dialogue is told.
struct Question {
  std::string data;
  size_t body_size = 0;
};

struct CallRequest {
  std::string_view meta;
  const Blob* function = nullptr;
  std::string_view arguments;
  std::vector<Buffer> buffers;  // out of band
  CallLimits limits;
  // IdentityOf() `meta` and `function`, which a cell can load before this call. Zeros: nothing is
  // loaded ahead of it, and no cell keeps it.
  Sha256Digest identity{};
  // For calls on shared cells, to each of which `meta` and `function` are sent once: after how many
  // calls, and at what age, a cell is replaced. 0: a fresh cell, for this call only.
  uint64_t calls_of_cell = 0;
  Clock::duration age_of_cell{};
  const Dialogue* dialogue = nullptr;  // nullptr: the call may say nothing
  // What it says is passed on and not kept, so that `result_bytes` limits each message only.
  bool streams = false;
  // The pool has a network: its use is requested from the agent before the outcome is returned.
  bool network = false;

  bool shared() const { return calls_of_cell != 0; }
  // When the caller began to prepare it, which counts as "send" in its timings; zero: when Call()
  // is called.
  Clock::time_point begun{};
  // For the agent's audit log, see CallStats.
  uint64_t policy = 0;
  std::array<uint64_t, 2> code{};
};

using OutputHook = std::function<void(int stream, std::string_view)>;

struct CallHooks {
  std::function<bool()> interrupted;  // polled every quarter second and after each EINTR
  OutputHook output;                  // live, as it comes
  int cancel_fd = -1;                 // readable: cancel
};

// The result's bytes, ours alone.
class Payload {
 public:
  Payload(std::string bytes, size_t body) : bytes_(std::move(bytes)), body_(body) {}
  Payload(PrivateMapping mapping, size_t body) : mapping_(std::move(mapping)), body_(body) {}
  char* data() { return mapping_.data() != nullptr ? mapping_.data() : bytes_.data(); }
  size_t size() const { return mapping_.data() != nullptr ? mapping_.size() : bytes_.size(); }
  size_t body_size() const { return body_; }

 private:
  std::string bytes_;
  PrivateMapping mapping_;
  size_t body_;
};

enum class CallStatus {
  kReturned,
  kRaised,
  kUnencodable,
  kTooLarge,
  kOutOfMemory,  // its result is larger than its memory limit
  kTimedOut,
  kCancelled,
  kInterrupted,
  kEnded,
  kBroken  // the cell broke the protocol: hostile code, or code that wrote to a socket not its own
};

struct CallOutcome {
  explicit CallOutcome(uint64_t output_limit = 0, uint64_t id = 0)
      : output(output_limit), call_id(id) {}

  CallStatus status =
      CallStatus::kEnded;  // kEnded: the cell's end of the socket closed without a reply
  std::unique_ptr<Payload> payload;
  CallUsage usage;
  uint64_t result_size = 0;
  bool replied = false;  // the cell sent a reply, also to a call that was interrupted at its limit
  std::string detail;    // of kBroken: what it did
  // When sending it began; when its reply had come, or it was over without one.
  Clock::time_point sent{}, ended{};
  Output output;
  uint64_t call_id;
};

// A digest of everything that is loaded for a call, and of nothing that belongs to one call only.
// `code`: the digest of the function's bytes. `policy`: as in CallStats.
Sha256Digest IdentityOf(std::string_view meta, const Sha256Digest& code, uint64_t policy,
                        bool shared);

// The frame by which a cell loads the function of this request before its call comes, which brings
// everything once more. It contains nothing that belongs to one call only. `quick`: the call is to
// run on the CPU of the calling thread. "": it is too large for a frame.
std::string LoadFrame(const CallRequest& request, bool quick);

using Loans = std::vector<std::shared_ptr<Segment>>;

class Lease {
 public:
  // `segments`: where the memory of large arguments comes from.
  Lease(uint64_t id, std::string worker, Fd socket, Fd out, Fd err,
        std::shared_ptr<SegmentPool> segments)
      : segments_(std::move(segments)),
        id_(id),
        worker_(std::move(worker)),
        socket_(std::move(socket)),
        out_(std::move(out)),
        err_(std::move(err)) {}

  uint64_t id() const { return id_; }
  const std::string& worker() const { return worker_; }
  Clock::time_point sent() const { return sent_; }  // when the call was last sent on it

  // The cell was sent the LoadFrame of that identity: it serves calls of this identity only.
  void SetLoaded(const Sha256Digest& identity) { loaded_ = identity; }
  bool is_loaded() const { return loaded_.has_value(); }
  bool IsLoadedFor(const Sha256Digest& identity) const { return loaded_ == identity; }

  // The cell is kept for a session, and serves calls of any kind. Calls end as kEnded when its user
  // process ends, which its PID 1 says.
  // `interrupt`, called at a call's deadline: has it raise KeyboardInterrupt, for which it has a
  // grace of 0.3 s.
  void SetKept(std::function<void()> interrupt) {
    kept_ = true;
    interrupt_ = std::move(interrupt);
  }
  uint32_t call_number() const { return static_cast<uint32_t>(call_id_); }
  // After the end of its user process: all that it still printed. Frames that it sent are dropped.
  void TakeRest(Output& output, const OutputHook& hook);

  // Sends the call. False: the cell was gone before it was sent, or is loaded for another, so it
  // certainly did not run.
  bool Send(const CallRequest& request, uint64_t call_id);

  // What the cell was lent. The caller calls Ended() of each when the cell is certainly dead;
  // without that, it is not used again.
  Loans TakeLoans() { return std::move(loans_); }
  // Whether it holds the memory of a large result.
  bool holds_result() const { return static_cast<bool>(result_memfd_); }
  bool has_loans() const { return !loans_.empty(); }

  // Waits for what becomes of it. `slow` is called when the call has been running for some
  // milliseconds, when its clock begins anew, is stopped or goes on, and when it was given memory
  // for its result.
  // REQUIRES: Send() returned true. Throws kProtocol when the cell breaks the protocol. `lost` is
  // called every quarter second in which the cell sends nothing; true: the wait ends, for the agent
  // does not watch the cell any more, or (it hung up) it is dead.
  CallOutcome Await(const CallRequest& request, const CallHooks& hooks,
                    const std::function<void()>& slow,
                    const std::function<bool(bool hung_up)>& lost = nullptr);

  // Within `request.dialogue`, on its thread, while what the cell asks is open and Await() waits:
  // sends this answer, and waits for what is asked next, which is open from then on; a clock that
  // was stopped goes on. nullopt: the call is over, and what the dialogue returns is not sent.
  std::optional<Question> Exchange(const std::string& answer);

  // ---- Await in steps, for a thread that waits for many calls. REQUIRES: Send() returned true.
  static constexpr size_t kPolled = 3;
  void Fill(pollfd* polled) const;  // kPolled descriptors to be polled
  Clock::time_point due() const;    // when Step has something to do though nothing came
  // Takes what came since, and checks the deadline. True: it is decided, and Take() is to be
  // called. Throws as Await does.
  bool Step(const CallRequest& request, const pollfd* polled, const OutputHook& output,
            const std::function<void()>& slow);
  CallOutcome Take() { return std::move(outcome_); }
  bool reported_slow() const { return reported_slow_; }
  // The limit of its wall time from now on, for `slow`; 0: none.
  uint64_t timeout_ms() const { return timeout_ms_; }
  // No reply will come: the program was replaced (exec), or its process ended. Processes that have
  // its standard output may still print.
  bool hung_up() const { return hung_up_; }
  uint64_t result_kb() const { return result_memfd_ ? result_memfd_size_ / 1024 + 1 : 0; }
  // Ends the wait with what was printed until now.
  CallOutcome End(CallStatus status, const OutputHook& output);

 private:
  struct Wait;  // of Await()
  // Polls once. True when the outcome is decided.
  bool Round(Wait& wait);
  // True when `outcome` is decided.
  bool OnFrame(CallOutcome& outcome, const CallRequest& request, const std::function<void()>& slow);
  // What became of the call, if it is to end.
  std::optional<CallStatus> OnSaid(const FrameHeader& header, std::string_view payload,
                                   const CallRequest& request, const std::function<void()>& slow);
  void SetClock(bool stop, const std::function<void()>& slow);
  void ResumeAtAgent(Clock::time_point now, const std::function<void()>& slow);
  std::optional<CallStatus> SendAnswer(const std::string& answer, const CallRequest& request);
  // Whether the call is to end now; false: it was interrupted, and may end by itself for a while.
  bool GiveUp(CallStatus status);
  void TakePart(const FrameHeader& header, std::string_view payload, uint64_t most);
  void TakeResult(CallOutcome& outcome, const FrameHeader& header, std::string_view payload);
  void ReadOutput(int stream, const OutputHook& output);

  // Appends the descriptors of the memory that holds the buffers. The kCall frame's section 3.
  std::vector<uint64_t> PlaceBuffers(const std::vector<Buffer>& buffers, std::vector<Fd>& owned);

  std::shared_ptr<SegmentPool> segments_;
  Loans loans_;
  uint64_t id_;
  std::string worker_;
  Fd socket_, out_, err_;
  uint64_t call_id_ = 0;
  Clock::time_point sent_;
  Clock::time_point deadline_;
  uint64_t timeout_ms_ = 0;
  std::optional<Clock::time_point> stopped_at_;  // since when its clock stands
  // The agent was told that it stands, and is told that it goes on when it has gone on for a while:
  // code that calls one tool after another costs no message for each.
  bool agent_stopped_ = false;
  Clock::time_point resumed_at_;
  bool quick_ = false;  // as its last call was
  bool restarted_ = false;
  bool reported_slow_ = false;
  bool hung_up_ = false;
  bool kept_ = false;
  std::function<void()> interrupt_;
  bool interrupted_ = false;
  CallStatus interrupted_as_{};
  std::optional<Sha256Digest> loaded_;
  std::set<Sha256Digest> known_;  // what a shared cell has loaded
  bool stream_ended_[2] = {false, false};
  CallOutcome outcome_;
  Fd result_memfd_;
  uint64_t result_memfd_size_ = 0;
  std::string parts_;  // of a result, as they come
  uint64_t parts_size_ = 0;
  uint64_t said_ = 0;        // frames of the call's dialogue
  uint64_t said_bytes_ = 0;  // and their size
  uint64_t answer_bytes_ = 0;
  Wait* wait_ = nullptr;
  bool exchanges_ = false;  // what is asked goes to Exchange()
  std::optional<Question> asked_;
};

}  // namespace hutch

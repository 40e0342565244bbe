// SPDX-License-Identifier: Apache-2.0

// The zygote, as the warden has it: it is started, started again without a module that it could not
// import, and given what to load. Once it is ready it has nothing more to say, but that it could
// not fork a slot.
//
// Thread contract: one thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "images/warden/agent_link.h"
#include "images/warden/channel.h"
#include "images/warden/configuration.h"
#include "images/warden/environments.h"
#include "images/warden/events.h"
#include "images/warden/settings.h"
#include "images/warden/stderr_tail.h"

namespace hutch {

// The modules that the next zygote is not to import, as lines "module TAB reason".
class SkipList {
 public:
  void Add(const char* line, size_t size);  // nothing, where there is no more room
  const char* text() const { return text_; }

 private:
  char text_[8192] = {};
  size_t size_ = 0;
};

class Zygote {
 public:
  // All of them outlive it.
  Zygote(const Settings& settings, const Environments& environments,
         const Configuration& configuration, AgentLink& agent, const Events& events)
      : settings_(settings),
        environments_(environments),
        configuration_(configuration),
        agent_(agent),
        events_(events) {}

  void OpenStderr();  // once, before Start()
  void Start();
  void Configure();  // once the configuration is there

  // Takes the next message. True: it is a kFailed, of a slot that could not be forked.
  bool Next(Datagram* message);
  void ReadStderr() { stderr_.Read(); }
  // At each tick: it may hang in an import. `held_up_us` of the time since the last one nobody had.
  void CheckImport(int64_t now, int64_t held_up_us);
  // It was reaped. False: for good, as was reported to the agent; true: another one begins.
  bool OnDeath(int status);
  // Single cell: it has become the user process; and that has ended.
  void BecomeCell() { stderr_.Close(); }
  void Forget() { pid_ = 0; }

  // The worker is of no more use: says so to the agent, and ends the warden.
  [[noreturn]] void Fatal(const char* text);

  pid_t pid() const { return pid_; }  // 0: there is none
  int control() const { return control_; }
  bool ready() const { return ready_; }
  uint64_t kb() const { return kb_; }  // its resident size when it became ready
  void ReportReady();                  // with its notes

 private:
  void OnMessage(const Datagram& message);
  void OnReady(const Datagram& message);
  void Skip(const char* line, size_t size);
  void SkipImported(const char* reason);
  void SendLastWords(int status);

  const Settings& settings_;
  const Environments& environments_;
  const Configuration& configuration_;
  AgentLink& agent_;
  const Events& events_;
  int control_ = -1;
  pid_t pid_ = 0;
  StderrTail stderr_;
  bool ready_ = false;
  bool again_ = false;  // it asked to be started without a module
  int starts_ = 0;
  uint64_t kb_ = 0;
  char importing_[128] = {};
  int64_t import_deadline_us_ = 0;
  char notes_[16384];
  size_t notes_size_ = 0;
  SkipList skip_;
};

}  // namespace hutch

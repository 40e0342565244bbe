// SPDX-License-Identifier: Apache-2.0

// The warden: PID 1 of a worker. It starts the zygote, is the parent of every slot and cell, and is
// the only process of the worker that the agent talks to. It times, measures, kills, reaps and
// reports; it makes no cells itself.
//
// Theory of operation. One thread, one epoll loop; nothing in it blocks or allocates. Zygote, slots
// and cells run as the same uid, in the worker's or in nested user namespaces; as PID 1 the warden
// cannot be killed from among them, and it is not dumpable, so that its memory (the token) cannot
// be read. Any message from them may be forged: it is acted on only in a state that expects it, and
// a pid counts only if the kernel attached it and it is a child of the warden with no other role.
// Anything else ends the worker. When the warden exits, the kernel kills all of them.
//
// The parts, each of which says of itself how it works: the connection to the agent (agent_link.h),
// what the agent said of the calls (configuration.h), the zygote (zygote.h), the slots and the life
// of their cells (slots.h, cell.h), and the watch over what they take (watch.h), whose threads that
// may be kept waiting are apart (reader.h). Here is the loop that drives them.
//
// In a single-cell worker (control.h) the zygote is slot and user process in one, and the cell is
// the whole container except the warden: killing it kills everything, and there is no second one.
#pragma once

#include <cstdint>

#include "images/warden/agent_link.h"
#include "images/warden/cell.h"
#include "images/warden/configuration.h"
#include "images/warden/environments.h"
#include "images/warden/events.h"
#include "images/warden/settings.h"
#include "images/warden/slots.h"
#include "images/warden/ticker.h"
#include "images/warden/watch.h"
#include "images/warden/zygote.h"

namespace hutch {

class Warden {
 public:
  // What `settings` points to outlives the warden.
  explicit Warden(const Settings& settings) : settings_(settings) {}

  // Serves the agent until the end of the worker; returns its exit status.
  int Run();

 private:
  bool Connect();
  bool Open();  // all but the first connection; false: there is no agent
  bool OnEvent(uint32_t source, uint32_t events);
  bool OnSignals();
  void OnAgent();
  void OnOrder(const Datagram& order);
  void OnConfigure(const Datagram& order);
  void OnZygote();
  void OnZygoteDeath(int status);
  void Reap();
  void Tick();
  bool busy() const;
  void EndIf(const char* failed);  // the worker, unless it is null

  const Settings settings_;
  Environments environments_;
  Configuration configuration_;
  Events events_;
  Ticker ticker_;
  AgentLink agent_{settings_, events_};
  Zygote zygote_{settings_, environments_, configuration_, agent_, events_};
  Slot table_[kMaxSlots];
  Watch watch_{configuration_, zygote_, table_};
  Slots slots_{configuration_, agent_, events_, zygote_, watch_, table_};
  int signals_ = -1;
  bool child_ended_ = false;  // it is reaped after the other events
  bool ending_ = false;  // the zygote is gone for good: its cells are killed and reported first
  int64_t ending_us_ = 0;
};

}  // namespace hutch

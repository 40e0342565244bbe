// SPDX-License-Identifier: Apache-2.0

#include "images/warden/warden.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "images/warden/clock.h"
#include "images/warden/locks.h"
#include "images/warden/vet_mounts.h"
#include "images/worker/wall_switch.h"

namespace hutch {
namespace {

constexpr int64_t kAgentGoneUs = 9'500'000;  // all is over within ten seconds
constexpr int64_t kEndingUs = 2'000'000;     // for the reports of killed cells

}  // namespace

bool Warden::Open() {
  sigset_t signals;
  sigfillset(&signals);
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  sigaddset(&signals, SIGTERM);
  events_.Open();
  signals_ = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
  ticker_.Open();
  events_.Watch(signals_, Events::kSignal);
  events_.Watch(ticker_.fd(), Events::kTimer);
  agent_.NoteGone();
  while (!Connect()) {
    if (NowUs() - agent_.gone_us() > kAgentGoneUs) return false;
    usleep(50'000);
  }
  if (settings_.any_environment && settings_.namespaces.error == 0) EndIf(environments_.Hold());
  watch_.Open();
  zygote_.OpenStderr();
  zygote_.Start();
  return true;
}

int Warden::Run() {
  if (!Open()) return 3;
  for (;;) {
    ticker_.Set(busy());
    epoll_event events[64];
    const int count = TEMP_FAILURE_RETRY(events_.Wait(events, 64));
    child_ended_ = false;
    for (int i = 0; i < count; ++i) {
      if (!OnEvent(events[i].data.u32, events[i].events)) return 0;
    }
    if (child_ended_) Reap();
  }
}

// False: the worker is to end.
bool Warden::OnEvent(uint32_t source, uint32_t events) {
  switch (source) {
    case Events::kAgent:
      if ((events & EPOLLOUT) != 0) agent_.Flush();
      if ((events & ~EPOLLOUT) != 0) OnAgent();
      break;
    case Events::kZygote:
      OnZygote();
      break;
    case Events::kStderr:
      zygote_.ReadStderr();
      break;
    case Events::kTimer:
      if (ticker_.Take()) Tick();
      break;
    case Events::kReader:
      EndIf(watch_.TakeAnswers());
      slots_.EndThoseOver();
      break;
    case Events::kSignal:
      return OnSignals();
    default:
      if (source < kMaxSlots) slots_.OnSlot(static_cast<int>(source));
  }
  return true;
}

bool Warden::OnSignals() {
  signalfd_siginfo info;
  while (read(signals_, &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGTERM) return false;
    child_ended_ = true;
  }
  return true;
}

void Warden::EndIf(const char* failed) {
  if (failed != nullptr) zygote_.Fatal(failed);
}

// An agent that comes later is sent what it must know of a worker that is at work already.
bool Warden::Connect() {
  if (!agent_.Connect()) return false;
  if (zygote_.ready()) {
    zygote_.ReportReady();
    slots_.ReportAll();
  }
  return true;
}

void Warden::OnAgent() {
  Datagram order;
  while (agent_.connected()) {
    const Receiving got = Receive(agent_.fd(), &order);
    if (got == Receiving::kNothing) return;
    if (got == Receiving::kMalformed) _exit(5);
    if (got == Receiving::kGone) return agent_.Lose();
    OnOrder(order);
    order.CloseDescriptors();
  }
}

void Warden::OnOrder(const Datagram& order) {
  const FrameHeader& header = order.header;
  switch (header.kind) {
    case FrameKind::kConfigure:
      return OnConfigure(order);
    case FrameKind::kMakeSlot:
      return slots_.OnMakeSlot(order);
    case FrameKind::kMakeCell:
      return slots_.OnMakeCell(order);
    case FrameKind::kEndSlot:
      return slots_.OnEndSlot(order);
    case FrameKind::kArm:
      return slots_.OnArm(header);
    case FrameKind::kKill:
      Reap();  // one that is dead already was not killed by this
      return slots_.OnKill(header.id);
    case FrameKind::kKeep:
      return slots_.OnKeep(header);
    case FrameKind::kNextUser:
      return slots_.OnNextUser(order);
    case FrameKind::kInterrupt:
      return slots_.OnInterrupt(header);
    case FrameKind::kRestart:
      Reap();
      return slots_.OnRestart(header);
    case FrameKind::kPing: {
      FrameHeader pong;
      pong.kind = FrameKind::kPong;
      return agent_.Report(pong);
    }
    case FrameKind::kRetire:
      _exit(0);
    default:
      _exit(5);
  }
}

void Warden::OnConfigure(const Datagram& order) {
  if (!configuration_.Take(order.payload, order.size)) _exit(5);
  // gVisor shows everybody's environment. The agent takes no second connection of such a worker.
  if (configuration_.single_cell()) memset(settings_.token, 'x', strlen(settings_.token));
  // Before any code of a stranger's runs.
  if (!WallIsDown("vetting") && !MountsAreVetted(configuration_.Text("HUTCH_MOUNTS"))) {
    zygote_.Fatal(
        "a mount shows another file than the one that was checked: it was replaced meanwhile");
  }
  // gVisor's kernel is the container's alone, and its devices are.
  const bool gvisor = configuration_.gvisor();
  if (const char* locked = gvisor || WallIsDown("locks") ? nullptr : HoldSharedLocks()) {
    char text[128];
    snprintf(text, sizeof text, "%s is locked by another process of this host: end that first",
             locked);
    zygote_.Fatal(text);
  }
  if (environments_.held()) EndIf(environments_.Choose(configuration_.Text("HUTCH_ENVIRONMENT")));
  if (!gvisor) {  // each reader has the capabilities that are left now
    if (!watch_.StartReaders()) zygote_.Fatal("a thread could not be made");
    events_.Watch(watch_.answered(), Events::kReader);
  }
  zygote_.Configure();
}

void Warden::OnZygote() {
  Datagram message;
  while (zygote_.Next(&message)) slots_.OnNotForked(message);
}

void Warden::OnZygoteDeath(int status) {
  if (zygote_.OnDeath(status)) return;
  ending_ = true;
  ending_us_ = NowUs();
  slots_.KillAll();
}

void Warden::Reap() {
  slots_.CheckStops();
  for (;;) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0 || info.si_pid == 0)
      return;
    // What a process said before it died is in a queue already. Hear it first.
    if (info.si_pid == zygote_.pid()) OnZygote();
    slots_.HearAll();
    int status = 0;
    rusage usage{};
    if (wait4(info.si_pid, &status, WNOHANG | __WALL, &usage) != info.si_pid) continue;
    if (!slots_.OnDeath(info.si_pid, status, usage) && info.si_pid == zygote_.pid())
      OnZygoteDeath(status);
  }
}

void Warden::Tick() {
  const int64_t now = NowUs();
  const int64_t held_up_us = ticker_.HeldUpUs(now);
  if (!agent_.connected() && !Connect() && now - agent_.gone_us() > kAgentGoneUs) _exit(0);
  zygote_.CheckImport(now, held_up_us);
  EndIf(watch_.LookAtReaders(now));
  slots_.EndThoseOver();
  const bool live = std::any_of(table_, table_ + kMaxSlots, [](const Slot& slot) {
    return slot.cell.state != CellState::kNone;
  });
  slots_.ReportHeld(now);
  slots_.FailLate(now, held_up_us);
  watch_.LookAtCells(now);
  slots_.EndThoseOver();
  if (ending_ && (!live || now - ending_us_ > kEndingUs)) _exit(6);
  EndIf(watch_.LookAtWorker(now));
}

bool Warden::busy() const {
  return !agent_.connected() || (configuration_.taken() && !zygote_.ready()) || ending_ ||
         slots_.busy();
}

}  // namespace hutch

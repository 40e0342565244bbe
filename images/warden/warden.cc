// SPDX-License-Identifier: Apache-2.0

#include "images/warden/warden.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "images/warden/clock.h"
#include "images/warden/locks.h"
#include "images/warden/measure.h"
#include "images/warden/vet_mounts.h"
#include "images/worker/wall_switch.h"

namespace hutch {
namespace {

constexpr int64_t kAgentGoneUs = 9'500'000;  // all is over within ten seconds
constexpr int64_t kMakingUs = 10'000'000;    // a slot or cell that takes longer hangs
constexpr int64_t kEndingUs = 2'000'000;     // for the reports of killed cells
constexpr int64_t kHeldUpUs = 100'000;       // a tick that is later: the machine has no time for us
constexpr int kStopsAtOnce = 256;
constexpr int64_t kBusyMs = 20;
constexpr int64_t kIdleMs = 1000;
constexpr int64_t kQuietUs = 900'000;  // between samples of a cell that waits for its call

}  // namespace

Warden::Warden(const Settings& settings) : settings_(settings) {}

int Warden::Run() {
  sigset_t signals;
  sigfillset(&signals);
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  sigaddset(&signals, SIGTERM);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  signals_ = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
  if (getentropy(&random_, sizeof random_) != 0 || random_ == 0) random_ = 1;
  timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  Watch(signals_, kSignalEvent);
  Watch(timer_, kTimerEvent);
  agent_gone_us_ = NowUs();
  while (!Connect()) {
    if (NowUs() - agent_gone_us_ > kAgentGoneUs) return 3;
    usleep(50'000);
  }
  if (settings_.any_environment && settings_.namespaces.error == 0) {
    if (const char* failed = environments_.Hold()) Fatal(failed);
  }
  proc_ = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  zygote_stderr_.Open();
  if (zygote_stderr_.read_end() >= 0) Watch(zygote_stderr_.read_end(), kStderrEvent);
  StartZygote();
  for (;;) {
    SetTick();
    epoll_event events[64];
    const int count = TEMP_FAILURE_RETRY(epoll_wait(epoll_, events, 64, -1));
    bool child = false;
    for (int i = 0; i < count; ++i) {
      const uint32_t what = events[i].data.u32;
      if (what == kAgentEvent) {
        if ((events[i].events & EPOLLOUT) != 0) Flush();
        if ((events[i].events & ~EPOLLOUT) != 0) OnAgent();
      } else if (what == kZygoteEvent) {
        OnZygote();
      } else if (what == kStderrEvent) {
        zygote_stderr_.Read();
      } else if (what == kTimerEvent) {
        uint64_t times;
        if (read(timer_, &times, sizeof times) > 0) {
          if (period_ms_ == kBusyMs) period_ms_ = 0;  // the next one comes at another time
          Tick();
        }
      } else if (what == kReaderEvent) {
        OnReaders();
      } else if (what == kSignalEvent) {
        signalfd_siginfo info;
        while (read(signals_, &info, sizeof info) == sizeof info) {
          if (info.ssi_signo == SIGTERM) return 0;
          child = true;
        }
      } else if (what < kMaxSlots) {
        OnSlot(static_cast<int>(what));
      }
    }
    if (child) Reap();
  }
}

void Warden::Watch(int fd, uint32_t what) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = what;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
}

void Warden::WatchZygote() { Watch(zygote_control_, kZygoteEvent); }

void Warden::Fatal(const char* text) {
  SendLastWords(0);
  FrameHeader header;
  header.kind = FrameKind::kZygoteDied;
  header.a = 0;
  Report(header, text, strlen(text));
  _exit(4);
}

// ---- the agent ----

bool Warden::Connect() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  strncpy(address.sun_path, settings_.socket, sizeof address.sun_path - 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  FrameHeader hello;
  hello.kind = FrameKind::kHello;
  hello.a = kFrameVersion;
  hello.b = settings_.namespaces.error;
  hello.c = settings_.namespaces.step;
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      !Send(fd, hello, settings_.token, strlen(settings_.token))) {
    if (fd >= 0) close(fd);
    return false;
  }
  agent_ = fd;
  agent_waits_ = false;
  unsent_count_ = 0;
  Watch(agent_, kAgentEvent);
  Announce();
  return true;
}

void Warden::LoseAgent() {
  close(agent_);
  agent_ = -1;
  agent_gone_us_ = NowUs();
}

// What an agent that comes later must know of a worker that is at work already.
void Warden::Announce() {
  if (!zygote_ready_) return;
  FrameHeader header;
  header.kind = FrameKind::kZygoteReady;
  Report(header, notes_, notes_size_);
  for (int i = 0; i < kMaxSlots; ++i) {
    const Slot& slot = slots_[i];
    if (slot.state != SlotState::kServing) continue;
    header.a = static_cast<uint32_t>(i);
    header.kind = FrameKind::kSlotReady;
    header.id = 0;
    if (slot.cell.state == CellState::kReady) {
      header.kind = FrameKind::kCellReady;
      header.id = slot.cell.id;
    } else if (slot.cell.state != CellState::kNone) {
      continue;
    }
    Report(header);
  }
}

void Warden::OnAgent() {
  Datagram message;
  while (agent_ >= 0) {
    const Receiving got = Receive(agent_, &message);
    if (got == Receiving::kNothing) return;
    if (got == Receiving::kMalformed) _exit(5);
    if (got == Receiving::kGone) return LoseAgent();
    const FrameHeader& header = message.header;
    switch (header.kind) {
      case FrameKind::kConfigure:
        OnConfigure(message);
        break;
      case FrameKind::kMakeSlot:
        OnMakeSlot(message);
        break;
      case FrameKind::kMakeCell:
        OnMakeCell(message);
        break;
      case FrameKind::kEndSlot:
        OnEndSlot(message);
        break;
      case FrameKind::kArm:
        OnArm(header);
        break;
      case FrameKind::kKill:
        Reap();  // one that is dead already was not killed by this
        if (Slot* slot = FindCell(header.id)) Kill(&slot->cell, kKilled);
        break;
      case FrameKind::kKeep:
        OnKeep(header);
        break;
      case FrameKind::kInterrupt:
        if (Slot* slot = FindCell(header.id)) InterruptUser(slot->cell, header);
        break;
      case FrameKind::kRestart:
        Reap();
        if (Slot* slot = FindCell(header.id);
            slot != nullptr && slot->cell.kept && header.b == slot->cell.users_ended) {
          slot->cell.restart_ordered = true;
          KillWhatRuns(&slot->cell, kNoLimit);
        }
        break;
      case FrameKind::kPing:
        Pong();
        break;
      case FrameKind::kRetire:
        _exit(0);
      default:
        _exit(5);
    }
    message.CloseDescriptors();
  }
}

// The value of `key` in a configuration, or "".
const char* Warden::Text(const char* key) const {
  const size_t size = strlen(key);
  for (size_t at = 0; at < config_size_; at += strlen(config_ + at) + 1) {
    if (strncmp(config_ + at, key, size) == 0 && config_[at + size] == '=')
      return config_ + at + size + 1;
  }
  return "";
}

uint64_t Warden::Configured(const char* key, uint64_t otherwise) const {
  const char* text = Text(key);
  return *text == '\0' ? otherwise : strtoull(text, nullptr, 10);
}

void Warden::OnConfigure(const Datagram& message) {
  const bool whole = message.size > 0 && message.size <= sizeof config_ &&
                     message.payload[message.size - 1] == '\0';
  if (configured_ || !whole) _exit(5);
  configured_ = true;
  memcpy(config_, message.payload, message.size);
  config_size_ = message.size;
  memory_kb_ = Configured("HUTCH_MEMORY_KB", memory_kb_);
  pids_ = Configured("HUTCH_PIDS", pids_);
  watch_kb_ = Configured("HUTCH_WATCH_KB", memory_kb_);
  single_cell_ = Configured("HUTCH_BARE", 0) != 0;
  // As many as in a cell's scratch. Podman mounts none with such a limit.
  if (single_cell_) files_ = std::clamp<uint64_t>(Configured("HUTCH_DISK_KB", 0) / 8, 1024, 65536);
  // gVisor shows everybody's environment. The agent takes no second connection of such a worker.
  if (single_cell_) memset(settings_.token, 'x', strlen(settings_.token));
  gvisor_ = Configured("HUTCH_GVISOR", 0) != 0;
  // A package, or the caller's setup function, may load much; it may not eat the host.
  worker_kb_ = Configured("HUTCH_WORKER_KB", std::max<uint64_t>(4 << 20, 2 * memory_kb_));
  // Before any code of a stranger's runs.
  if (!WallIsDown("vetting") && !MountsAreVetted(Text("HUTCH_MOUNTS"))) {
    Fatal("a mount shows another file than the one that was checked: it was replaced meanwhile");
  }
  // gVisor's kernel is the container's alone, and its devices are.
  if (const char* locked = gvisor_ || WallIsDown("locks") ? nullptr : HoldSharedLocks()) {
    char text[128];
    snprintf(text, sizeof text, "%s is locked by another process of this host: end that first",
             locked);
    Fatal(text);
  }
  if (environments_.held()) {
    if (const char* failed = environments_.Choose(Text("HUTCH_ENVIRONMENT"))) Fatal(failed);
  }
  if (!gvisor_) StartReaders();  // each has the capabilities that are left now
  ConfigureZygote();
}

void Warden::Pong() {
  FrameHeader header;
  header.kind = FrameKind::kPong;
  Report(header);
}

void Warden::Report(const FrameHeader& header, const void* payload, size_t size) {
  if (agent_ < 0) return;  // Announce() reports what still matters
  if (unsent_count_ == 0) {
    if (Send(agent_, header, payload, size)) return;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return;  // its end comes as an event
  }
  if (unsent_count_ == kMaxUnsent) return LoseAgent();  // it does not read
  Unsent& unsent = unsent_[(unsent_first_ + unsent_count_++) % kMaxUnsent];
  unsent.header = header;
  unsent.size = static_cast<uint16_t>(std::min(size, sizeof unsent.payload));
  if (payload != nullptr) memcpy(unsent.payload, payload, unsent.size);
  Flush();
}

void Warden::Flush() {
  while (unsent_count_ > 0) {
    const Unsent& unsent = unsent_[unsent_first_];
    if (!Send(agent_, unsent.header, unsent.payload, unsent.size)) break;
    unsent_first_ = (unsent_first_ + 1) % kMaxUnsent;
    --unsent_count_;
  }
  if (agent_waits_ == (unsent_count_ > 0)) return;
  agent_waits_ = unsent_count_ > 0;
  epoll_event event{};
  event.events = EPOLLIN | (agent_waits_ ? EPOLLOUT : 0u);
  event.data.u32 = kAgentEvent;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, agent_, &event);
}

// ---- processes and time ----

bool Warden::IsNewChild(pid_t pid) const {
  if (pid <= 1 || pid == zygote_) return false;
  for (const Slot& slot : slots_) {
    if (slot.pid == pid || slot.cell.init == pid) return false;
  }
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0;
}

void Warden::Reap() {
  if (single_cell_) {
    CheckForStop();
  } else {
    CheckForStopped();
  }
  for (;;) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0 || info.si_pid == 0)
      return;
    // What a process said before it died is in a queue already. Hear it first.
    if (info.si_pid == zygote_) OnZygote();
    for (int i = 0; i < kMaxSlots; ++i) {
      if (slots_[i].state != SlotState::kFree) OnSlot(i);
    }
    int status = 0;
    rusage usage{};
    if (wait4(info.si_pid, &status, WNOHANG | __WALL, &usage) == info.si_pid)
      OnDeath(info.si_pid, status, usage);
  }
}

// Code in a cell cannot stop its PID 1, nor a slot: a process that stops one of ours does so from
// outside, and nobody would continue it. A zygote can stop itself; it is of as little use then.
void Warden::CheckForStopped() {
  for (int i = 0; i < kStopsAtOnce; ++i) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WSTOPPED | WNOHANG | __WALL) != 0 || info.si_pid == 0) return;
    if (info.si_pid == zygote_) kill(zygote_, SIGKILL);
    for (int number = 0; number < kMaxSlots; ++number) {
      Slot& slot = slots_[number];
      if (slot.state == SlotState::kFree) continue;
      if (slot.cell.init == info.si_pid) Kill(&slot.cell, kLost);
      if (slot.pid != info.si_pid) continue;
      static constexpr char kText[] = "the slot was stopped";
      FailSlot(number, ECHILD, kText, sizeof kText - 1);
    }
  }
}

void Warden::OnDeath(pid_t pid, int status, const rusage& usage) {
  if (pid == zygote_ && single_cell_ && OnSingleCellDeath(status, usage)) return;
  if (pid == zygote_) return OnZygoteDeath(status);
  for (int i = 0; i < kMaxSlots; ++i) {
    if (slots_[i].cell.init == pid) return OnCellDeath(i, usage);
    if (slots_[i].pid == pid) {
      slots_[i].pid = 0;
      char text[64];
      const int size =
          WIFEXITED(status)
              ? snprintf(text, sizeof text, "the slot exited with %d", WEXITSTATUS(status))
              : snprintf(text, sizeof text, "the slot died of signal %d", WTERMSIG(status));
      return FailSlot(i, ECHILD, text, static_cast<size_t>(size));
    }
  }
}

void Warden::Tick() {
  const int64_t now = NowUs();
  const int64_t delay = now - ticked_us_ - period_ms_ * 1000;
  ticked_us_ = now;
  // Nobody else had time either.
  const int64_t held_up = delay > kHeldUpUs ? delay : 0;
  if (import_deadline_us_ != 0) import_deadline_us_ += held_up;
  if (agent_ < 0 && !Connect() && now - agent_gone_us_ > kAgentGoneUs) _exit(0);
  if (import_deadline_us_ != 0 && now > import_deadline_us_)
    SkipImported("took too long to import");
  bool live = false;
  bool measured = false;
  WatchReaders(now);
  for (int i = 0; i < kMaxSlots; ++i) {
    Slot& slot = slots_[i];
    Cell& cell = slot.cell;
    live = live || cell.state != CellState::kNone;
    slot.waited_us += held_up;
    const bool late =
        (slot.state == SlotState::kStarting && now - slot.begun_us - slot.waited_us > kMakingUs) ||
        ((cell.state == CellState::kMaking || cell.state == CellState::kMade ||
          (cell.kept && cell.end != kEndedItself)) &&
         now - cell.begun_us - slot.waited_us > kMakingUs);
    if (late) {
      static constexpr char kText[] = "it took longer than 10 s";
      FailSlot(i, ETIMEDOUT, kText, sizeof kText - 1);
    } else if (cell.state == CellState::kReady && cell.armed_us != 0 && cell.end == kEndedItself &&
               (!cell.quiet || now - cell.sampled_us >= kQuietUs)) {
      if (!measured) SampleHost();
      measured = true;
      WatchCell(i, now);
    }
  }
  if (ending_ && (!live || now - ending_us_ > kEndingUs)) _exit(6);
  const int64_t worker_period_us = zygote_ready_ ? 1'000'000 : 100'000;
  if (now - worker_sampled_us_ >= worker_period_us) {
    worker_sampled_us_ = now;
    WatchWorker();
  }
  SendReaders();
}

void Warden::SetTick() {
  bool busy = agent_ < 0 || (configured_ && !zygote_ready_) || ending_;
  for (const Slot& slot : slots_) {
    busy = busy || slot.state == SlotState::kStarting ||
           (slot.cell.armed_us != 0 && !slot.cell.quiet) || slot.cell.state == CellState::kMaking ||
           (slot.cell.kept && slot.cell.state == CellState::kMade);
  }
  const int64_t period = busy ? kBusyMs : kIdleMs;
  if (period == period_ms_) return;
  period_ms_ = period;
  ticked_us_ = NowUs();
  itimerspec time{};
  time.it_interval.tv_sec = period / 1000;
  time.it_interval.tv_nsec = period % 1000 * 1'000'000;
  time.it_value = time.it_interval;
  if (period == kBusyMs) {
    // From half to one and a half of it: code that knew the time of a sample could act in between.
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    time.it_value.tv_nsec = static_cast<long>(kBusyMs * 500'000 + random_ % (kBusyMs * 1'000'000));
  }
  timerfd_settime(timer_, 0, &time, nullptr);
}

}  // namespace hutch

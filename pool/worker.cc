// SPDX-License-Identifier: Apache-2.0

#include "pool/worker.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "wire/log.h"

namespace hutch {
namespace {

// Until the zygote has imported its packages; each import has a deadline of its own inside.
constexpr auto kStartDeadline = std::chrono::seconds(180);
constexpr size_t kMaxNotes = 16 * 1024;
constexpr size_t kMaxReason = 300;
// From the container's start until the warden connects: a gVisor has to boot.
constexpr unsigned kUnheard = 20 * kWholeLook;

// Text of a worker is shown in logs and terminals, and put into JSON, so only printable ASCII is
// let through.
std::string Printable(std::string_view text, size_t most) {
  std::string printable(text.substr(0, most));
  for (char& c : printable) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return printable;
}

// As seen from here: the user who runs Podman has uid 0. On gVisor, its gofer connects for the
// warden, as that user.
unsigned PeerUid(const WorkerLaunch& launch) {
  return launch.as_caller || launch.gvisor ? 0 : launch.uid;
}

std::string NameOfErrno(uint64_t error) {
  return " (" + std::string(std::strerror(static_cast<int>(std::min<uint64_t>(error, 4095)))) + ")";
}

// Why the host lets the warden make no cells. It tried before any caller's code ran, so it is to be
// believed.
std::string NoNamespaces(uint64_t step, uint64_t error) {
  const char* what = "namespaces for a slot";
  if (step == kMappedUser) what = "a user mapped in a new user namespace";
  if (step == kNewMounts) what = "mounts in a new user namespace";
  if (step == kNestedNamespaces) what = "namespaces for a cell, within those of its slot";
  if (step == kNewProc) what = "a /proc of a cell's own";
  return std::string("this host does not let a container make ") + what + NameOfErrno(error);
}

// What a slot or cell failed at.
std::string Failure(uint64_t error, std::string_view text) {
  return Printable(text, kMaxReason) + (error == 0 ? "" : NameOfErrno(error));
}

}  // namespace

Worker::Worker(Loop& loop, Podman& podman, Background& background, Listener& listener,
               const Paths& paths, WorkerLaunch launch, const Modules& modules)
    : loop_(loop),
      listener_(&listener),
      launch_(std::move(launch)),
      container_(loop, podman, background),
      link_(loop, *this),
      cells_(loop, *this,
             {.send =
                  [this](const FrameHeader& header, std::span<const int> descriptors) {
                    return link_.Send(header, {}, descriptors);
                  },
              .crowded = [this] { return link_.IsCrowded(); }},
             launch_.name, launch_.gvisor) {
  launch_.modules = !modules.empty();
  MakeWorkerDirectory(launch_, modules);
  link_.Listen(launch_.socket_dir + "/" + kWorkerSocketName, PeerUid(launch_));
  // Nothing throws from here on, so that a started container always has its worker.
  SetStartDeadline();
  container_.Start(paths, launch_,
                   [this](const std::optional<Error>& failure) { OnContainerStarted(failure); });
}

Worker::~Worker() {
  loop_.Cancel(start_timer_);
  link_.Send({.kind = FrameKind::kRetire});
  cells_.slots().KillGroups();  // whatever the warden does about kRetire
  link_.Close();
}

void Worker::SetStartDeadline() {
  loop_.Cancel(start_timer_);
  start_timer_ =
      loop_.After(kStartDeadline, [this] { GiveUp("the worker was not ready in time"); });
}

void Worker::OnContainerStarted(const std::optional<Error>& failure) {
  container_runs_ = !failure;
  if (container_runs_) return;
  failure_ = failure->code();
  GiveUp(std::string("its container could not be started: ") + failure->what());
}

void Worker::Configure(Listener& listener, const PoolSpec& pool, const std::string& preload,
                       Cgroups* cgroups, const std::string& environment) {
  if (launch_.any_environment) {
    launch_.environment = environment;
    launch_.modules = !pool.modules.empty();
    WriteModules(launch_, pool.modules);
  }
  // A single cell has no slot that could enter a cgroup: its warden measures it, as it does where
  // there are no cgroups.
  launch_.cgroups = cgroups != nullptr && cgroups->usable() && !launch_.single_cell;
  cells_.UseCgroups(launch_.cgroups ? cgroups : nullptr, LimitsOfSlot(pool));
  last_words_.HideValues(pool.env);
  launch_.setup = !pool.setup.empty();
  launch_.preload = preload;
  config_ = WorkerConfig(pool, launch_);
  if (launch_.setup) WriteSetup(launch_, pool.setup);
  listener_ = &listener;
  SetStartDeadline();
  if (state_ == State::kConnected) SendConfig();
}

void Worker::SendConfig() {
  state_ = State::kConfigured;
  link_.Send({.kind = FrameKind::kConfigure}, config_);
  config_.clear();
}

// ---- what the warden says

void Worker::OnFrame(const FrameHeader& header, std::string_view payload) {
  if (state_ == State::kStarting && header.kind != FrameKind::kHello)
    return GiveUp("the warden did not identify itself first");
  switch (header.kind) {
    case FrameKind::kHello:
      return OnHello(header, payload);
    case FrameKind::kZygoteReady:
      return OnZygoteReady(payload);
    case FrameKind::kSlotReady:
      return cells_.OnSlotReady(header.a);
    case FrameKind::kSlotGone:
      return cells_.OnSlotGone(header.a);
    case FrameKind::kCellReady:
      if (IsLogged(LogLevel::kDebug)) {
        LogDebug("a cell is ready",
                 {{"lease", header.id}, {"worker", launch_.name}, {"made_us", header.b}});
      }
      return cells_.OnCellReady(header.id);
    case FrameKind::kCellExit:
      return cells_.OnCellExit(header.id, payload);
    case FrameKind::kKept:
      return cells_.kept().OnKept(header.id, header.b == 0);
    case FrameKind::kUserExit:
      return cells_.kept().OnUserExit(header.id, payload);
    case FrameKind::kUserReady:
      return cells_.kept().OnUserReady(header.id);
    case FrameKind::kBackground:
      return cells_.kept().OnBackground(header.id, header.b);
    case FrameKind::kFailed:
      return cells_.OnFailed(header.a, header.id, Failure(header.b, payload));
    case FrameKind::kPong:
      if (!heart_.Answered()) GiveUp("the warden sent a pong that nobody asked for");
      return;
    case FrameKind::kZygoteStderr:
      if (payload.size() > kMaxZygoteStderr) return GiveUp("the zygote sent an oversized text");
      return last_words_.Log(launch_.name, header.a, payload);
    case FrameKind::kZygoteDied:
      return GiveUp("the zygote died: " + Printable(payload, kMaxReason));
    default:
      return GiveUp("the warden sent a frame of a kind that wardens do not send");
  }
}

void Worker::OnHello(const FrameHeader& header, std::string_view payload) {
  if (state_ != State::kStarting) return GiveUp("the warden identified itself twice");
  if (payload != launch_.token) return GiveUp("the warden has the wrong token");
  state_ = State::kConnected;
  if (header.b != 0 && !launch_.single_cell) {
    failure_ = Code::kPlatform;
    return GiveUp(NoNamespaces(header.c, header.b));
  }
  // The call runs beside the warden there, and must find no way to us.
  if (launch_.single_cell) link_.StopListening();
  if (!config_.empty()) return SendConfig();
  loop_.Cancel(std::exchange(start_timer_, 0));  // A spare may wait as long as it likes.
}

void Worker::OnZygoteReady(std::string_view payload) {
  if (state_ != State::kConfigured || payload.size() > kMaxNotes)
    return GiveUp("the warden sent an unexpected ready frame");
  loop_.Cancel(std::exchange(start_timer_, 0));
  state_ = State::kReady;
  ready_since_ = Clock::now();
  notes_ = Printable(payload, kMaxNotes);
  listener_->OnWorkerReady(*this);
}

// ---- its end

void Worker::Look(unsigned worth) {
  if (state_ == State::kDead) return;
  if (state_ == State::kStarting) {
    if (container_runs_) unheard_ += worth;
    if (unheard_ >= kUnheard) GiveUp("the warden did not identify itself in time");
    return;
  }
  switch (heart_.Look(worth)) {
    case Heartbeat::Next::kAsk:
      link_.Send({.kind = FrameKind::kPing});
      return;
    case Heartbeat::Next::kWait:
      return;
    case Heartbeat::Next::kGiveUp:
      return GiveUp("the warden does not answer");
  }
}

void Worker::GiveUp(const std::string& why) {
  if (state_ == State::kDead) return;
  state_ = State::kDead;
  link_.StopReading();
  cells_.Drop();
  listener_->OnWorkerDead(*this, why);  // usually destroys *this soon after
}

}  // namespace hutch

// SPDX-License-Identifier: Apache-2.0

#include "pool/worker.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <thread>

#include "wire/channel.h"

namespace hutch {
namespace {

namespace fs = std::filesystem;

// Until the zygote has imported its packages; each import has a deadline of its own inside.
constexpr auto kStartDeadline = std::chrono::seconds(180);
constexpr size_t kMaxNotes = 16 * 1024;
constexpr size_t kMaxWords = 300;
constexpr int kRemovals = 3;
constexpr auto kKillDeadline = std::chrono::seconds(5);
// From its container's start until the warden is heard: a gVisor has to boot.
constexpr unsigned kUnheard = 20 * kWholeLook;
// Cells that end, or cannot be made, in a row: without an end to it a hostile package keeps us
// forking.
constexpr unsigned kMaxBarren = 16;
// Frames taken in a row: one that never stops talking keeps the agent from nobody else.
constexpr int kFramesAtOnce = 64;
// In a slot's cgroup beside a call's own: the slot, and the cell's PID 1. A forwarder, where there
// is a network, is one more.
constexpr uint64_t kOwnProcesses = 2;
constexpr unsigned kFirstWorkerUid = 1000;  // inside; each worker has one of its own, in turn
constexpr unsigned kWorkerUids = 20'000;

// What a worker says is shown in logs and terminals, and put into JSON: printable ASCII is all that
// is let through.
std::string Printable(std::string_view text, size_t most) {
  std::string printable(text.substr(0, most));
  for (char& c : printable) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return printable;
}

std::string RandomHex(size_t digits) {
  static std::random_device entropy;
  std::string hex;
  while (hex.size() < digits) {
    char part[9];
    std::snprintf(part, sizeof part, "%08x", static_cast<unsigned>(entropy()));
    hex += part;
  }
  hex.resize(digits);
  return hex;
}

uint64_t NextCellId() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

void WriteFile(const fs::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) throw Error(Code::kInternal, "could not write " + path.string(), "is the disk full?");
  fs::permissions(path, fs::perms(0644));
}

void WriteModule(const fs::path& root, const std::string& path, const std::string& content) {
  const fs::path relative = fs::path(path).lexically_normal();
  if (path.empty() || relative.is_absolute() || *relative.begin() == "..") {
    throw Error(Code::kInvalidArgument, "a module has a path that leaves its directory: " + path);
  }
  fs::create_directories((root / relative).parent_path());
  WriteFile(root / relative, content);
}

void WriteModules(const fs::path& socket_dir, const Worker::Modules& modules) {
  for (const auto& [path, content] : modules) WriteModule(socket_dir / kModulesName, path, content);
}

// As seen from here: the user whose Podman it is has uid 0. gVisor's gofer connects for the warden,
// as that user.
unsigned PeerUid(const WorkerLaunch& launch) {
  return launch.as_caller || launch.gvisor ? 0 : launch.uid;
}

}  // namespace

unsigned NextWorkerUid() {
  static std::atomic<unsigned> next{0};
  return kFirstWorkerUid + next++ % kWorkerUids;
}

WorkerLaunch NewLaunch(const Paths& paths, const std::string& generation, unsigned uid,
                       const std::string& base_id, const std::string& runtime_id,
                       const std::string& tag) {
  WorkerLaunch launch;
  launch.name = "hutch-worker-" + tag + "-" + RandomHex(8);
  launch.token = RandomHex(32);
  launch.uid = uid;
  launch.image = BaseReference(base_id);
  launch.runtime_dir = paths.runtime_dir(runtime_id);
  launch.socket_dir = paths.worker_dir() + "/" + launch.name;
  launch.generation = generation;
  return launch;
}

Worker::Worker(Loop& loop, Podman& podman, Background& background, Listener& listener,
               const Paths& paths, WorkerLaunch launch, const Modules& modules)
    : loop_(loop),
      podman_(podman),
      background_(background),
      listener_(&listener),
      launch_(std::move(launch)),
      started_(Clock::now()),
      container_(std::make_shared<Container>()),
      alive_(std::make_shared<bool>(true)) {
  launch_.modules = !modules.empty();
  fs::create_directories(launch_.socket_dir);
  fs::permissions(launch_.socket_dir,
                  fs::perms(0755));  // run_dir above it is 0700; the worker's uid is another
  WriteModules(launch_.socket_dir, modules);
  if (launch_.any_environment) {
    for (const char* name : {kModulesName, kNoPackages}) {
      fs::create_directory(launch_.socket_dir + "/" + name);
      fs::permissions(launch_.socket_dir + "/" + name, fs::perms(0755));
    }
  }
  // Nothing throws from here on: the loop would keep callbacks into an object that never was.
  listener_fd_ = ListenAt(launch_.socket_dir + "/" + kWorkerSocketName, 1, 0666);
  loop_.Add(listener_fd_.get(), EPOLLIN, [this](uint32_t) { OnAccept(); });
  start_timer_ = loop_.After(kStartDeadline, [this] { Die("the worker was not ready in time"); });

  background_.Post([this, launch = launch_, alive = alive_, container = container_, &paths,
                    &loop = loop_, &podman = podman_]() mutable {
    const MutexLock lock(container->mutex);
    if (container->removed) return;
    std::optional<Error> failure;
    try {
      // By id from here on: a tag that is moved meanwhile changes nothing.
      const std::optional<std::string> image = podman.ImageId(launch.image);
      if (!image) throw Error(Code::kMissingBase, "there is no image " + launch.image);
      launch.image = *image;
      podman.Start(podman.Create(WorkerContainerSpec(paths, launch)));
    } catch (const Error& e) {
      failure = e;
    } catch (const std::exception& e) {
      failure = Error(Code::kWorkerFailed, e.what());
    }
    loop.Post([this, alive, failure = failure] {
      if (!*alive) return;
      made_ = !failure;
      if (made_) return;
      failure_ = failure->code();
      Die(std::string("its container could not be started: ") + failure->what());
    });
  });
}

Worker::~Worker() {
  *alive_ = false;
  if (start_timer_ != 0) loop_.Cancel(start_timer_);
  if (listener_fd_) loop_.Remove(listener_fd_.get());
  if (warden_) {
    Send({.kind = FrameKind::kRetire});
    loop_.Remove(warden_.get());
  }
  for (const auto& [slot, group] : groups_) group->Kill();  // whatever the warden does about it
  warden_.reset();
  background_.Post([&podman = podman_, container = container_, name = launch_.name,
                    dir = launch_.socket_dir] {
    const MutexLock lock(container->mutex);
    container->removed = true;
    // What runs there runs on. The agent's sweep tries again later.
    for (int attempt = 1; attempt <= kRemovals; ++attempt) {
      try {
        podman.Remove(name);
        break;
      } catch (const std::exception& e) {
        std::fprintf(stderr, "worker %s: could not be removed yet: %s\n", name.c_str(), e.what());
      }
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    std::error_code ignored;
    fs::remove_all(dir, ignored);
  });
}

void Worker::Configure(Listener& listener, const PoolSpec& pool, const std::string& preload,
                       Cgroups* cgroups, const std::string& environment) {
  if (launch_.any_environment) {
    launch_.environment = environment;
    launch_.modules = !pool.modules.empty();
    WriteModules(launch_.socket_dir, pool.modules);
  }
  // A bare worker has no slot to put into one: its warden watches, as where there are no cgroups.
  if (cgroups != nullptr && cgroups->usable() && !launch_.bare) cgroups_ = cgroups;
  launch_.cgroups = cgroups_ != nullptr;
  cgroup_limits_ = {.memory_kb = pool.memory_mb * 1024,
                    .pids = pool.pids + kOwnProcesses + (pool.allow_network.empty() ? 0 : 1),
                    .cpus = pool.cpus};
  launch_.setup = !pool.setup.empty();
  launch_.preload = preload;
  config_ = WorkerConfig(pool, launch_);
  if (launch_.setup) WriteFile(launch_.socket_dir + "/" + kSetupName, pool.setup);
  listener_ = &listener;
  started_ = Clock::now();
  loop_.Cancel(std::exchange(start_timer_, 0));
  start_timer_ = loop_.After(kStartDeadline, [this] { Die("the worker was not ready in time"); });
  if (proved_) SendConfig();
}

void Worker::SendConfig() {
  configured_ = true;
  Send({.kind = FrameKind::kConfigure}, config_);
  config_.clear();
}

void Worker::Put(uint32_t slot, SlotState state) {
  const auto [place, fresh] = slots_.try_emplace(slot, state);
  if (!fresh) --in_state_[static_cast<size_t>(place->second)];
  place->second = state;
  ++in_state_[static_cast<size_t>(state)];
}

void Worker::OnAccept() {
  Fd peer(::accept4(listener_fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!peer) {
    if (errno == EMFILE || errno == ENFILE) Die("the agent has no descriptor left");
    return;
  }
  if (warden_ || PeerOf(peer.get()).uid != PeerUid(launch_))
    return;  // dropped: one warden, and it has this worker's uid
  warden_ = std::move(peer);
  loop_.Add(warden_.get(), EPOLLIN, [this](uint32_t) { OnWarden(); });
}

void Worker::OnWarden() {
  alignas(FrameHeader) static char buffer[sizeof(FrameHeader) + kMaxPayload];
  const auto alive = alive_;
  for (int i = 0; i < kFramesAtOnce; ++i) {
    const ReceiveResult got = ReceiveDatagram(warden_.get(), buffer, nullptr, 0);
    if (got.status == ReceiveStatus::kNothing) return;
    if (got.status == ReceiveStatus::kClosed) return Die("the warden is gone");
    if (got.status == ReceiveStatus::kTruncated || got.size < sizeof(FrameHeader)) {
      return Die("the warden sent a malformed frame");
    }
    FrameHeader header;
    std::memcpy(&header, buffer, sizeof header);
    if (header.magic != kFrameMagic || header.version != kFrameVersion)
      return Die("the warden sent an unknown frame");
    try {
      OnFrame(header, {buffer + sizeof header, got.size - sizeof header});
    } catch (const Error& error) {  // this worker is given up, the agent is not
      return Die(error.what());
    }
    if (!*alive || state_ == State::kDead) return;
  }
}

void Worker::OnFrame(const FrameHeader& header, std::string_view payload) {
  if (!proved_ && header.kind != FrameKind::kHello) return Die("the warden did not say who it is");
  const auto slot = slots_.find(header.a);
  const auto cell = cells_.find(header.id);
  switch (header.kind) {
    case FrameKind::kHello:
      if (proved_) return Die("the warden said twice who it is");
      if (payload != launch_.token) return Die("the warden has the wrong token");
      proved_ = true;
      if (header.b != 0 && !launch_.bare) return RefuseNamespaces(header.c, header.b);
      if (launch_.bare) {  // what runs there finds no way to us
        loop_.Remove(listener_fd_.get());
        listener_fd_.reset();
        std::error_code ignored;
        fs::remove(launch_.socket_dir + "/" + kWorkerSocketName, ignored);
      }
      if (!config_.empty()) return SendConfig();
      loop_.Cancel(std::exchange(start_timer_, 0));  // a spare: it may wait as long as it likes
      return;
    case FrameKind::kZygoteReady:
      if (!configured_ || state_ != State::kStarting || payload.size() > kMaxNotes)
        return Die("an unexpected ready frame");
      loop_.Cancel(std::exchange(start_timer_, 0));
      state_ = State::kReady;
      ready_since_ = Clock::now();
      start_seconds_ = std::chrono::duration<double>(ready_since_ - started_).count();
      notes_ = Printable(payload, kMaxNotes);
      return listener_->OnWorkerReady(*this);
    case FrameKind::kSlotReady:
      if (slot == slots_.end() || slot->second != SlotState::kMaking)
        return Die("an unexpected slot");
      // The zygote may be hostile: that its slot is where its limits are is for the kernel to say.
      if (const auto group = groups_.find(header.a);
          group != groups_.end() && !group->second->populated())
        return Die("a slot did not enter its cgroup");
      Put(slot->first, SlotState::kFree);
      if (refill_) MakeCell(slot->first);
      return;
    case FrameKind::kSlotGone:
      if (slot == slots_.end() || slot->second != SlotState::kEnding)
        return Die("an unexpected end of a slot");
      free_numbers_.push_back(header.a);
      return ForgetSlot(header.a);
    case FrameKind::kCellReady:
      if (cell == cells_.end() || cell->second.ready) return Die("an unexpected cell");
      cell->second.ready = true;
      barren_ = 0;
      Put(cell->second.slot, SlotState::kHasCell);
      if (cell->second.unwanted) return Kill(header.id);
      return listener_->OnCellReady(*this, header.id);
    case FrameKind::kCellExit: {
      if (cell == cells_.end() || payload.size() != sizeof(CellReport))
        return Die("an unexpected end of a cell");
      CellReport report;
      std::memcpy(&report, payload.data(), sizeof report);
      const uint32_t its_slot = cell->second.slot;
      if (RanOutOfMemory(its_slot)) {
        // The kernel killed the slot with it, so the warden knows of no reason.
        report.end = kKilled;
        report.limit = kLimitMemory;
        const uint64_t peak_kb = groups_.at(its_slot)->peak_kb();
        if (peak_kb != 0) report.peak_kb = peak_kb;
        report.memory_limit_kb = cgroup_limits_.memory_kb;
        cells_.erase(cell);
        EndSlot(its_slot);
        return listener_->OnCellGone(*this, header.id, report);
      }
      if (!cell->second.ready && GivesNoCells()) return Die("its cells end before they are ready");
      const auto gone = cells_.extract(cell);
      Put(its_slot, SlotState::kFree);
      return listener_->OnCellGone(*this, header.id, report);
    }
    case FrameKind::kFailed: {
      const std::string words = Printable(payload, kMaxWords);
      std::fprintf(stderr, "worker %s: slot %u, cell %llu failed: %s\n", launch_.name.c_str(),
                   header.a, static_cast<unsigned long long>(header.id), words.c_str());
      if (slot == slots_.end()) return Die("a failure of an unknown slot");
      if (slot->second == SlotState::kEnding) return;  // kSlotGone follows
      if (RanOutOfMemory(header.a)) {  // what a call did, and no fault of the worker's
        EndSlot(header.a);
        return listener_->OnSlotsChanged(*this);
      }
      tainted_ = true;
      // A worker that can no longer make a single slot is of no use to anybody.
      if (slots_.size() == 1 || GivesNoCells()) return Die("a cell could not be made: " + words);
      ForgetSlot(header.a);
      return listener_->OnSlotsChanged(*this);
    }
    case FrameKind::kPong:
      if (!heart_.Answered()) return Die("an answer to no question");
      return;
    case FrameKind::kZygoteDied:
      return Die("the zygote died: " + Printable(payload, kMaxWords));
    default:
      return Die("the warden sent a frame that is not its own");
  }
}

// The warden tried it before anybody's code was there, so it is to be believed.
void Worker::RefuseNamespaces(uint64_t step, uint64_t error) {
  const char* what = "namespaces for a slot";
  if (step == kMappedUser) what = "a user mapped in a new user namespace";
  if (step == kNewMounts) what = "mounts in a new user namespace";
  if (step == kNestedNamespaces) what = "namespaces for a cell, within those of its slot";
  if (step == kNewProc) what = "a /proc of a cell's own";
  failure_ = Code::kPlatform;
  Die(std::string("this host does not let a container make ") + what + " (" +
      std::strerror(static_cast<int>(std::min<uint64_t>(error, 4095))) + ")");
}

bool Worker::GivesNoCells() { return ++barren_ >= kMaxBarren; }

bool Worker::RanOutOfMemory(uint32_t slot) {
  const auto group = groups_.find(slot);
  return group != groups_.end() && group->second->out_of_memory();
}

void Worker::EndSlot(uint32_t slot) {
  Put(slot, SlotState::kEnding);
  Send({.kind = FrameKind::kEndSlot, .a = slot});
  for (auto it = cells_.begin(); it != cells_.end(); ++it) {
    if (it->second.slot != slot) continue;
    const uint64_t id = it->first;
    cells_.erase(it);
    return listener_->OnCellGone(*this, id, CellReport{});
  }
}

void Worker::ForgetSlot(uint32_t slot) {
  const auto found = slots_.find(slot);
  groups_.erase(slot);
  --in_state_[static_cast<size_t>(found->second)];
  slots_.erase(found);
  for (auto it = cells_.begin(); it != cells_.end(); ++it) {
    if (it->second.slot != slot) continue;
    const uint64_t id = it->first;
    const auto gone = cells_.extract(it);
    listener_->OnCellGone(*this, id, CellReport{});
    return;
  }
}

void Worker::AddSlot() {
  // A number is used again only when the warden said that it is free: a slot that failed may be
  // told of twice, and the second word must not be taken for its successor's.
  uint32_t slot = next_slot_;
  if (free_numbers_.empty()) {
    ++next_slot_;
  } else {
    slot = free_numbers_.back();
    free_numbers_.pop_back();
  }
  Put(slot, SlotState::kMaking);
  auto group = cgroups_ == nullptr ? nullptr : cgroups_->Make(cgroup_limits_);
  if (cgroups_ != nullptr && group == nullptr) {
    // The warden of this worker trusts in them. The next worker will have another kind.
    loop_.Post([this, alive = alive_] {
      if (*alive) Die("a cgroup could not be made");
    });
    return;
  }
  const int descriptor[] = {group == nullptr ? -1 : group->procs()};
  const std::span<const int> descriptors(descriptor, group == nullptr ? 0 : 1);
  if (group != nullptr) groups_.insert_or_assign(slot, std::move(group));
  Send({.kind = FrameKind::kMakeSlot, .a = slot}, {}, descriptors);
}

void Worker::MakeCells(uint64_t count) {
  for (const auto& [slot, state] : slots_) {
    if (count == 0 || starved_) return;
    if (state != SlotState::kFree) continue;
    MakeCell(slot);
    --count;
  }
}

void Worker::EndFreeSlots(uint64_t count) {
  for (auto slot = slots_.rbegin(); slot != slots_.rend() && count > 0; ++slot) {
    if (slot->second != SlotState::kFree) continue;
    EndSlot(slot->first);
    --count;
  }
}

void Worker::MakeCell(uint32_t slot) {
  auto channels = MakeCellChannels(networks_.open != nullptr);
  if (!channels) {
    starved_ = true;  // until FillSlots(): that another slot gets a cell does not fill this one
    return;
  }
  const uint64_t id = NextCellId();
  if (!Send({.kind = FrameKind::kMakeCell, .a = slot, .id = id, .c = hurried_ ? kHurried : 0}, {},
            channels->theirs())) {
    starved_ = true;
    return;
  }
  Put(slot, SlotState::kMakingCell);
  Cell& cell =
      cells_.emplace(id, Cell{.slot = slot, .channels = std::move(channels->ours)}).first->second;
  if (networks_.open == nullptr) return;
  networks_.open(id, std::move(channels->egress));
  cell.network = {nullptr, [close = networks_.close, id](void*) { close(id); }};
}

void Worker::TryAgain() {
  starved_ = false;
  if (refill_) MakeCells(1);
}

CellChannels Worker::Take(uint64_t cell) {
  ++calls_;
  return std::move(cells_.at(cell).channels);
}

void Worker::Arm(uint64_t cell, uint64_t timeout_ms, uint64_t cpu_ms, uint64_t result_kb) {
  if (!cells_.contains(cell)) return;
  const auto result = static_cast<uint32_t>(std::min<uint64_t>(result_kb, kLoading - 1));
  Send({.kind = FrameKind::kArm, .a = result, .id = cell, .b = timeout_ms, .c = cpu_ms});
}

void Worker::ArmLoading(uint64_t cell, uint64_t cpu_ms) {
  if (cells_.contains(cell))
    Send({.kind = FrameKind::kArm, .a = kLoading, .id = cell, .c = cpu_ms});
}

void Worker::Kill(uint64_t cell) {
  if (!cells_.contains(cell)) return;
  Send({.kind = FrameKind::kKill, .id = cell});
  if (!launch_.gvisor) return;  // where the kernel is the host's, nothing holds up a warden
  loop_.After(kKillDeadline, [this, alive = alive_, cell] {
    if (*alive && cells_.contains(cell)) Die("its warden does not end a cell");
  });
}

void Worker::Look(unsigned worth) {
  if (state_ == State::kDead) return;
  if (!proved_) {
    if (made_ && (unheard_ += worth) >= kUnheard) Die("its warden does not say who it is");
    return;
  }
  switch (heart_.Look(worth)) {
    case Heartbeat::Next::kAsk:
      Send({.kind = FrameKind::kPing});
      return;
    case Heartbeat::Next::kWait:
      return;
    case Heartbeat::Next::kGiveUp:
      return Die("its warden does not answer");
  }
}

void Worker::Discard(uint64_t id) {
  const auto cell = cells_.find(id);
  if (cell == cells_.end()) return;
  if (cell->second.ready) return Kill(id);
  cell->second.unwanted = true;
}

bool Worker::Send(const FrameHeader& header, std::string_view payload,
                  std::span<const int> descriptors) {
  if (!warden_) return false;
  const iovec parts[] = {{const_cast<FrameHeader*>(&header), sizeof header},
                         {const_cast<char*>(payload.data()), payload.size()}};
  // The warden's queue holds a few hundred frames; one that does not read them is no warden of ours
  // any more.
  const SendStatus status = SendDatagram(warden_.get(), parts, descriptors);
  if (status == SendStatus::kSent) return true;
  if (status == SendStatus::kNoDescriptors) return false;
  loop_.Post([this, alive = alive_] {
    if (*alive) Die("the warden does not take orders any more");
  });
  return false;
}

void Worker::Die(const std::string& why) {
  if (state_ == State::kDead) return;
  state_ = State::kDead;
  for (auto& [id, cell] : std::exchange(cells_, {})) {
    listener_->OnCellGone(*this, id, CellReport{.end = kLost});
  }
  slots_.clear();
  for (uint64_t& count : in_state_) count = 0;
  listener_->OnWorkerDead(*this, why);  // usually destroys *this soon after, never inside
}

}  // namespace hutch

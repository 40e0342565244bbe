// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/egress.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstdio>
#include <deque>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "agent/egress/control.h"
#include "loop/background.h"
#include "wire/channel.h"
#include "wire/error.h"
#include "wire/log.h"

namespace hutch {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr auto kStart = std::chrono::seconds(20);
constexpr auto kClose = std::chrono::seconds(2);
// The process is pinged at every beat. Beats are counted instead of time: time during which the
// agent itself was suspended must not count as silence.
constexpr std::chrono::milliseconds kBeat{500};
constexpr int kMostBeats = 10;
// After a failed start. Cells that are added meanwhile have no network, and their records say why.
constexpr auto kPause = std::chrono::seconds(2);
constexpr char kUser[] = "999:999";  // neither a worker's (those begin at 1000) nor the agent's
constexpr char kSocketName[] = "egress.sock";
constexpr char kSocketDir[] = "/run/hutch";  // in the container
constexpr char kCaFile[] = "/opt/hutch-ca.pem";
constexpr char kImageCaFile[] = "/etc/ssl/certs/ca-certificates.crt";
constexpr char kRole[] = "egress";

std::string RandomToken() {
  std::random_device entropy;
  std::string token;
  while (token.size() < 32) {
    char part[9];
    std::snprintf(part, sizeof part, "%08x", static_cast<unsigned>(entropy()));
    token += part;
  }
  return token;
}

std::vector<NetworkRecord> Fault(const std::string& why) {
  NetworkRecord record;
  record.reason = why;
  record.lost = true;
  return {record};
}

}  // namespace

std::string EgressContainerSpec(const Paths& paths, const EgressLaunch& launch,
                                const std::string& name, const std::string& socket_dir,
                                const std::string& token) {
  const auto bind = [](const std::string& from, const char* to, const char* mode) {
    return json{{"type", "bind"},
                {"source", from},
                {"destination", to},
                {"options", {"rbind", mode, "nosuid", "nodev"}}};
  };
  json mounts = {bind(paths.runtime_dir(launch.runtime_id), "/opt/hutch", "ro"),
                 bind(socket_dir, kSocketDir, "rw")};
  if (!launch.ca_bundle.empty()) mounts.push_back(bind(launch.ca_bundle, kCaFile, "ro"));
  json spec = {
      {"name", name},
      {"image", BaseReference(launch.base_id)},
      {"command",
       {"/opt/hutch/hutch-agent", "--egress", "--socket",
        std::string(kSocketDir) + "/" + kSocketName, "--ca",
        launch.ca_bundle.empty() ? kImageCaFile : kCaFile}},
      {"env", {{"LD_LIBRARY_PATH", "/opt/hutch/lib"}, {"HUTCH_TOKEN", token}}},
      {"labels",
       {{"hutch.instance", paths.instance_label()},
        {"hutch.role", kRole},
        {"hutch.generation", launch.generation}}},
      {"mounts", mounts},
      {"user", kUser},
      {"cap_drop", {"ALL"}},
      {"no_new_privileges", true},
      {"read_only_filesystem", true},
      // The host's network, its name servers and its hosts file.
      {"netns", {{"nsmode", "host"}}},
      {"pidns", {{"nsmode", "private"}}},
      {"ipcns", {{"nsmode", "private"}}},
      {"utsns", {{"nsmode", "private"}}},
      {"use_image_hosts", false},
      {"use_image_resolve_conf", false},
      {"selinux_opts", {"disable"}},
      // No limit of open files here: it gets what Podman may give, and lowers that itself.
      {"r_limits", {{{"type", "core"}, {"soft", 0}, {"hard", 0}}}},
      {"log_configuration", {{"driver", "k8s-file"}, {"size", 1 << 20}}},
      {"image_volume_mode", "ignore"},
      {"stop_timeout", 0},
      {"systemd", "false"},
      {"sdnotifyMode", "ignore"},
      {"volatile", true},
  };
  if (const std::string level = LogLevelSetting(); !level.empty()) spec["env"]["HUTCH_LOG"] = level;
  return spec.dump();
}

struct Egress::Impl {
  enum class State { kDown, kStarting, kUp };
  struct Policy {
    uint64_t id;
    std::vector<std::string> allow_network;
    std::vector<SecretRule> secrets;
    uint64_t cells = 0;
    bool sent = false;  // to the process that runs now
  };
  struct Cell {
    uint64_t policy = 0;
    Fd channel;         // until it is sent
    std::string fault;  // why it has no process; "": it has one, or waits for one
    std::string lost;   // why it does not reach its process, which runs
    Closed closed;      // set by CloseCell()
    TimerId timer = 0;
  };
  struct Outgoing {
    EgressMessage message;
    Fd descriptor;
  };

  Impl(Loop& its_loop, Podman& its_podman, const Paths& its_paths, EgressLaunch its_launch)
      : loop(its_loop), podman(its_podman), paths(its_paths), launch(std::move(its_launch)) {}
  ~Impl();

  void Begin();
  void OnAccept();
  void OnConnection(uint32_t events);
  void Lost(const std::string& why);
  void Beat();
  void ReportLost();
  void Send(EgressMessage message, Fd descriptor = Fd());
  void Flush();
  void SendCell(uint64_t id, Cell& cell);
  Policy& PolicyOf(const PoolSpec& pool);
  void Release(uint64_t policy);
  void Finish(uint64_t id, std::vector<NetworkRecord> records);
  void Hang(Fd* fd);

  Loop& loop;
  Podman& podman;
  const Paths& paths;
  EgressLaunch launch;
  std::function<void(uint64_t)> on_lost;
  std::shared_ptr<bool> alive = std::make_shared<bool>(true);
  State state = State::kDown;
  Clock::time_point not_before{};
  std::string last_fault;
  std::string token;
  std::string container;
  Fd listener;
  Fd newcomer;  // has connected, and has not sent its token yet
  Fd connection;
  TimerId start_timer = 0;
  TimerId beat_timer = 0;
  std::chrono::milliseconds beat = kBeat;
  int unanswered = 0;  // beats
  uint64_t starts = 0;
  uint64_t next_policy = 1;
  std::vector<Policy> policies;
  std::map<uint64_t, Cell> cells;
  std::deque<Outgoing> outgoing;
  Background threads{1};
};

Egress::Impl::~Impl() {
  *alive = false;
  for (auto& [id, cell] : cells) loop.Cancel(cell.timer);
  loop.Cancel(start_timer);
  loop.Cancel(beat_timer);
  for (Fd* fd : {&listener, &newcomer, &connection}) Hang(fd);  // the process ends with it
  if (container.empty()) return;
  try {
    podman.Remove(container);
  } catch (const std::exception& error) {
    // The next agent removes it.
    LogWarn("the egress container could not be removed",
            {{"container", container}, {"why", error.what()}});
  }
}

void Egress::Impl::Hang(Fd* fd) {
  if (*fd) loop.Remove(fd->get());
  fd->reset();
}

void Egress::Impl::Begin() {
  if (state != State::kDown) return;
  if (Clock::now() < not_before) return Lost(last_fault);
  state = State::kStarting;
  token = RandomToken();
  container = "hutch-egress-" + paths.instance_label() + "-" + token.substr(0, 8);
  const std::string dir = paths.run_dir + "/egress";
  try {
    fs::create_directories(dir);
    fs::permissions(dir, fs::perms(0755));  // run_dir above it is 0700; its uid is another
    listener = ListenAt(dir + "/" + kSocketName, 1, 0666);
  } catch (const std::exception& error) {
    return Lost(std::string("the egress process could not be started: ") + error.what());
  }
  loop.Add(listener.get(), EPOLLIN, [this](uint32_t) { OnAccept(); });
  start_timer = loop.After(kStart, [this] { Lost("the egress process did not come up in time"); });
  const uint64_t start = ++starts;
  threads.Post([this, start, spec = EgressContainerSpec(paths, launch, container, dir, token),
                is_alive = alive, generation = launch.generation] {
    std::string failure;
    try {
      // Containers of the last process, or of an earlier agent.
      const auto all = podman.List("hutch.instance=" + paths.instance_label());
      for (const ContainerInfo& info : Removable(all, kRole, generation)) podman.Remove(info.id);
      podman.Start(podman.Create(spec));
      return;
    } catch (const std::exception& error) {
      failure = error.what();
    }
    loop.Post([this, is_alive, start, failure] {
      if (*is_alive && start == starts && state == State::kStarting)
        Lost("the egress process could not be started: " + failure);
    });
  });
}

void Egress::Impl::OnAccept() {
  Fd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted) return;
  Hang(&newcomer);
  newcomer = std::move(accepted);
  loop.Add(newcomer.get(), EPOLLIN, [this](uint32_t) {
    bool right = false;
    try {
      const std::optional<ReceivedEgress> received = ReceiveEgress(newcomer.get());
      if (!received) return;
      const auto* hello = std::get_if<EgressHello>(&received->message);
      right = hello != nullptr && hello->token == token;
    } catch (const Error&) {
      // This is not the process that was started.
    }
    if (!right) return Hang(&newcomer);
    loop.Remove(newcomer.get());
    connection = std::move(newcomer);
    Hang(&listener);
    loop.Cancel(start_timer);
    loop.Add(connection.get(), EPOLLIN, [this](uint32_t events) { OnConnection(events); });
    state = State::kUp;
    unanswered = 0;
    beat_timer = loop.After(beat, [this] { Beat(); });
    for (auto& [id, cell] : cells) {
      if (cell.channel) SendCell(id, cell);
    }
    ReportLost();
  });
}

void Egress::Impl::OnConnection(uint32_t events) {
  try {
    if ((events & EPOLLOUT) != 0) Flush();
    while (connection) {
      std::optional<ReceivedEgress> received = ReceiveEgress(connection.get());
      if (!received) return;
      unanswered = 0;
      if (std::holds_alternative<EgressPing>(received->message)) continue;
      if (const auto* gone = std::get_if<ForwarderGone>(&received->message)) {
        const auto cell = cells.find(gone->cell);
        if (cell == cells.end()) continue;
        cell->second.lost = "the forwarder of its connections ended";
        if (!cell->second.closed && on_lost) on_lost(gone->cell);
        continue;
      }
      auto* closed = std::get_if<CellClosed>(&received->message);
      if (closed == nullptr)
        throw Error(Code::kProtocol, "it sent a message that only an agent sends");
      Finish(closed->cell, std::move(closed->records));
    }
  } catch (const Error& error) {
    Lost(error.code() == Code::kUnavailable ? "the egress process ended: connections were cut off"
                                            : std::string("the egress process: ") + error.what());
    ReportLost();
  }
}

// A stopped process would keep the connections of its cells open, so it is removed.
void Egress::Impl::Beat() {
  if (++unanswered <= kMostBeats) {
    Send(EgressPing{});
    beat_timer = loop.After(beat, [this] { Beat(); });
    return;
  }
  threads.Post([this, name = container] {
    try {
      podman.Remove(name);
    } catch (const std::exception& error) {
      // The next start removes it.
      LogWarn("the egress container could not be removed",
              {{"container", name}, {"why", error.what()}});
    }
  });
  Lost("the egress process did not answer for seconds, and was ended: connections were cut off");
  ReportLost();
}

// Fails closed: the process was the only way out for its cells.
void Egress::Impl::Lost(const std::string& why) {
  LogError("the egress process is lost", {{"container", container}, {"why", why}});
  if (state == State::kStarting) {
    not_before = Clock::now() + kPause;
    last_fault = why;
  }
  state = State::kDown;
  loop.Cancel(start_timer);
  loop.Cancel(beat_timer);
  for (Fd* fd : {&listener, &newcomer, &connection}) Hang(fd);
  outgoing.clear();
  for (Policy& policy : policies) policy.sent = false;
  std::vector<uint64_t> waiting;
  for (auto& [id, cell] : cells) {
    if (!cell.fault.empty()) continue;
    cell.fault = why;
    cell.channel.reset();
    if (cell.closed) waiting.push_back(id);
  }
  for (const uint64_t id : waiting) Finish(id, Fault(why));
}

// Called at once when the process is lost, so that no call gets one of its cells meanwhile, but
// never while a cell is being added. Not called when a start failed: a new cell would have no
// network either, and the calls' records say why.
void Egress::Impl::ReportLost() {
  std::vector<uint64_t> lost;
  for (const auto& [id, cell] : cells) {
    if (!cell.fault.empty() && !cell.closed) lost.push_back(id);
  }
  for (const uint64_t id : lost) {
    if (on_lost) on_lost(id);
  }
}

void Egress::Impl::Send(EgressMessage message, Fd descriptor) {
  outgoing.push_back({std::move(message), std::move(descriptor)});
  if (outgoing.size() == 1) Flush();
}

void Egress::Impl::Flush() {
  try {
    while (!outgoing.empty()) {
      const Outgoing& next = outgoing.front();
      if (!SendEgress(connection.get(), next.message, next.descriptor.get())) {
        loop.Change(connection.get(), EPOLLIN | EPOLLOUT);
        return;
      }
      outgoing.pop_front();
    }
    loop.Change(connection.get(), EPOLLIN);
  } catch (const Error&) {
    // Reading reports the same, after the answers that arrived before the end.
    outgoing.clear();
  }
}

Egress::Impl::Policy& Egress::Impl::PolicyOf(const PoolSpec& pool) {
  for (Policy& policy : policies) {
    if (policy.allow_network == pool.allow_network && policy.secrets == pool.secrets) return policy;
  }
  return policies.emplace_back(Policy{next_policy++, pool.allow_network, pool.secrets});
}

// When the last cell with a policy is gone, its secrets are kept nowhere.
void Egress::Impl::Release(uint64_t id) {
  for (auto policy = policies.begin(); policy != policies.end(); ++policy) {
    if (policy->id != id || --policy->cells > 0) continue;
    if (policy->sent && connection) Send(ForgetPolicy{id});
    policies.erase(policy);
    return;
  }
}

void Egress::Impl::SendCell(uint64_t id, Cell& cell) {
  for (Policy& policy : policies) {
    if (policy.id != cell.policy || std::exchange(policy.sent, true)) continue;
    Send(SetPolicy{policy.id, policy.allow_network, policy.secrets});
  }
  Send(hutch::AddCell{id, cell.policy}, std::move(cell.channel));
}

void Egress::Impl::Finish(uint64_t id, std::vector<NetworkRecord> records) {
  const auto found = cells.find(id);
  if (found == cells.end()) return;
  const Closed closed = std::move(found->second.closed);
  if (!found->second.lost.empty()) records.push_back(Fault(found->second.lost).front());
  loop.Cancel(found->second.timer);
  const uint64_t policy = found->second.policy;
  cells.erase(found);
  Release(policy);
  if (closed) closed(std::move(records));
}

Egress::Egress(Loop& loop, Podman& podman, const Paths& paths, EgressLaunch launch)
    : impl_(std::make_unique<Impl>(loop, podman, paths, std::move(launch))) {}
Egress::~Egress() = default;

void Egress::OnLost(std::function<void(uint64_t)> lost) { impl_->on_lost = std::move(lost); }

void Egress::BeatEvery(std::chrono::milliseconds beat) { impl_->beat = beat; }

void Egress::Trust(std::string ca_bundle) {
  if (impl_->launch.ca_bundle == ca_bundle) return;
  impl_->launch.ca_bundle = std::move(ca_bundle);
  if (impl_->state != Impl::State::kDown)
    impl_->Lost("[host] ca_bundle was changed: connections were cut off");
  impl_->not_before = {};  // the last start may have failed because of the file
  impl_->ReportLost();
}

void Egress::AddCell(uint64_t id, const PoolSpec& pool, Fd channel) {
  Impl::Policy& policy = impl_->PolicyOf(pool);
  ++policy.cells;
  Impl::Cell& cell = impl_->cells[id];
  cell.policy = policy.id;
  cell.channel = std::move(channel);
  if (impl_->state == Impl::State::kUp) return impl_->SendCell(id, cell);
  impl_->Begin();
}

void Egress::CallIsOver(uint64_t id) {
  const auto found = impl_->cells.find(id);
  if (found == impl_->cells.end() || !found->second.fault.empty() || found->second.channel) return;
  impl_->Send(CallOver{id});
}

void Egress::CloseCell(uint64_t id, Closed closed) {
  const auto found = impl_->cells.find(id);
  if (found == impl_->cells.end()) return closed({});
  Impl::Cell& cell = found->second;
  cell.closed = std::move(closed);
  if (!cell.fault.empty()) return impl_->Finish(id, Fault(cell.fault));
  if (cell.channel) {  // the process is not up yet
    char frame;
    const bool waited = ::recv(cell.channel.get(), &frame, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
    return impl_->Finish(id, waited ? Fault("the egress process did not come up in time for it")
                                    : std::vector<NetworkRecord>());
  }
  cell.timer = impl_->loop.After(kClose, [impl = impl_.get(), id] {
    impl->Finish(id, Fault("the egress process does not answer: what it decided is not known"));
  });
  impl_->Send(hutch::CloseCell{id});
}

}  // namespace hutch

// SPDX-License-Identifier: Apache-2.0

#include "pool/worker_starter.h"

#include <utility>
#include <vector>

#include "podman/mounts.h"
#include "pool/rotation.h"
#include "wire/egress_rules.h"

namespace hutch {
namespace {

std::string Joined(const std::vector<std::string>& names) {
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : ",") + name;
  return joined;
}

}  // namespace

WorkerStarter::WorkerStarter(const PoolContext& context, const std::string& tag,
                             const PoolSpec& spec, const Environment& environment)
    : context_(context),
      tag_(tag),
      spec_(spec),
      environment_(environment),
      single_cells_(spec.isolation == Isolation::kGvisor) {}

WorkerStarter::~WorkerStarter() { context_.loop.Cancel(retry_timer_); }

bool WorkerStarter::Postponed(Clock::time_point now, std::function<void()> retry) {
  if (retry_timer_ != 0) return true;
  const auto wait = StartBackoff(record_.failures);
  if (record_.failures == 0 || !last_start_ || now - *last_start_ >= wait) return false;
  retry_timer_ = context_.loop.After(wait - (now - *last_start_), [this, retry = std::move(retry)] {
    retry_timer_ = 0;
    retry();
  });
  return true;
}

WorkerStarter::Started WorkerStarter::Start(Clock::time_point now, Worker::Listener& listener) {
  last_start_ = now;
  ++record_.starts;
  Started started{.worker = TakeSpare()};
  started.spare = started.worker != nullptr;
  if (!started.spare) started.worker = MakeOwn(listener);
  ServeNetworks(*started.worker);
  started.worker->Configure(listener, spec_,
                            Joined(spec_.preload_given ? spec_.preload : environment_.preload),
                            context_.cgroups, HasPackages(spec_) ? environment_.digest : "");
  return started;
}

// A spare's container was made before the pool was known, so it serves only pools that ask nothing
// of the container itself.
std::unique_ptr<Worker> WorkerStarter::TakeSpare() {
  const bool stored = environment_.tree_dir ==
                      context_.paths.environment_dir() + "/" + environment_.digest + "/tree";
  const bool any_container =
      (!HasPackages(spec_) || stored) && spec_.mounts.empty() && spec_.base.empty();
  if (!context_.spare || !any_container || single_cells_ || no_spare_) return nullptr;
  return context_.spare(spec_);
}

std::unique_ptr<Worker> WorkerStarter::MakeOwn(Worker::Listener& listener) {
  const bool as_caller = AsCaller(spec_);
  const unsigned uid = as_caller ? kCallerUid : context_.worker_uid();
  WorkerLaunch launch =
      NewLaunch(context_.paths, context_.generation, uid, spec_.base_id, spec_.runtime_id, tag_);
  launch.mounts = spec_.mounts;
  launch.as_caller = as_caller;
  launch.base = environment_.base;
  if (!launch.base.id.empty()) launch.image = launch.base.id;
  if (HasPackages(spec_)) launch.environment_dir = environment_.tree_dir;
  launch.node_modules = !spec_.node_requirements.empty();
  launch.single_cell = single_cells_;
  launch.gvisor = spec_.isolation == Isolation::kGvisor;
  launch.scratch_mb = spec_.disk_mb;
  return std::make_unique<Worker>(context_.loop, context_.podman, context_.background, listener,
                                  context_.paths, std::move(launch), spec_.modules);
}

void WorkerStarter::ServeNetworks(Worker& worker) {
  if (!HasNetwork(spec_) || !context_.open_network) return;
  worker.cells().maker().UseNetworks({[this](uint64_t cell, Fd channel) {
                                        context_.open_network(cell, spec_, std::move(channel));
                                      },
                                      context_.close_network});
}

void WorkerStarter::NoteFailure(const std::string& why) {
  ++record_.failures;
  ++record_.starts_failed;
  record_.last_failure = why;
}

void WorkerStarter::NoteSpareFailure() {
  ++record_.starts_failed;
  no_spare_ = true;
}

void WorkerStarter::NoteCell() {
  no_spare_ = false;
  record_.failures = 0;
}

}  // namespace hutch

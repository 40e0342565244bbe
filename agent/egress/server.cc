// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/server.h"

#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "loop/descriptors.h"
#include "wire/channel.h"
#include "wire/log.h"

namespace hutch {
namespace {

constexpr auto kTick = std::chrono::milliseconds(500);

// As many as allowed, but no more than kMostDescriptors: the kernel's buffers behind each are
// memory of the host.
void LimitDescriptors() {
  RaiseDescriptorLimit();
  if (DescriptorLimit() <= kMostDescriptors) return;
  const rlimit most{kMostDescriptors, kMostDescriptors};
  ::setrlimit(RLIMIT_NOFILE, &most);
}

}  // namespace

EgressServer::EgressServer(Loop& loop, Fd control, Lookup lookup, const TlsContext* tls,
                           std::string tls_error, std::function<void()> gone)
    : loop_(loop),
      control_(std::move(control)),
      resolver_(loop, std::move(lookup)),
      shared_{loop, resolver_, tls, std::move(tls_error), {}},
      gone_(std::move(gone)) {
  shared_.descriptors = static_cast<size_t>(DescriptorLimit());
  loop_.Add(control_.get(), EPOLLIN, [this](uint32_t events) { OnControl(events); });
  tick_ = loop_.After(kTick, [this] { Tick(); });
}

EgressServer::~EgressServer() {
  loop_.Cancel(tick_);
  cells_.clear();
  loop_.Remove(control_.get());
}

void EgressServer::OnControl(uint32_t events) {
  try {
    if ((events & EPOLLOUT) != 0) Flush();
    while (std::optional<ReceivedEgress> received = ReceiveEgress(control_.get()))
      Handle(std::move(*received));
  } catch (const Error& error) {
    if (error.code() != Code::kUnavailable)
      LogError("the agent broke the protocol", {{"why", error.what()}});
    cells_.clear();
    loop_.Remove(control_.get());
    gone_();
  }
}

void EgressServer::Handle(ReceivedEgress received) {
  if (auto* policy = std::get_if<SetPolicy>(&received.message)) {
    policies_[policy->id] =
        std::make_shared<EgressPolicy>(policy->allow_network, std::move(policy->secrets));
  } else if (const auto* forget = std::get_if<ForgetPolicy>(&received.message)) {
    policies_.erase(forget->id);  // its cells keep it
  } else if (const auto* add = std::get_if<AddCell>(&received.message)) {
    const auto its = policies_.find(add->policy);
    if (its == policies_.end() || !received.descriptor)
      throw Error(Code::kProtocol, "the agent added a cell without a policy or a channel");
    cells_[add->cell] =
        std::make_unique<EgressCell>(shared_, its->second, std::move(received.descriptor),
                                     [this, cell = add->cell] { Send(ForwarderGone{cell}); });
  } else if (const auto* over = std::get_if<CallOver>(&received.message)) {
    if (const auto cell = cells_.find(over->cell); cell != cells_.end()) cell->second->CallIsOver();
  } else if (std::holds_alternative<EgressPing>(received.message)) {
    Send(EgressPing{});
  } else if (const auto* close = std::get_if<CloseCell>(&received.message)) {
    CellClosed closed{close->cell, {}};
    if (const auto cell = cells_.find(close->cell); cell != cells_.end()) {
      closed.records = cell->second->Close();
      cells_.erase(cell);
    }
    Send(std::move(closed));
  } else {
    throw Error(Code::kProtocol, "the agent sent a message that only an egress process sends");
  }
}

void EgressServer::Send(EgressMessage message) {
  answers_.push_back(std::move(message));
  if (answers_.size() == 1) Flush();
}

void EgressServer::Flush() {
  try {
    while (!answers_.empty()) {
      if (!SendEgress(control_.get(), answers_.front())) {
        loop_.Change(control_.get(), EPOLLIN | EPOLLOUT);
        return;
      }
      answers_.pop_front();
    }
    loop_.Change(control_.get(), EPOLLIN);
  } catch (const Error&) {
    answers_.clear();  // reading reports the same, outside of calls from a cell
  }
}

void EgressServer::Tick() {
  const Clock::time_point now = Clock::now();
  for (const auto& [id, cell] : cells_) cell->Tick(now);
  tick_ = loop_.After(kTick, [this] { Tick(); });
}

int RunEgress(const EgressOptions& options) {
  ::prctl(PR_SET_DUMPABLE, 0);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);  // it would hold secrets
  SetUpLookups();
  LimitDescriptors();
  Fd control = ConnectTo(options.socket);
  if (!control) throw Error(Code::kUnavailable, "no agent listens at " + options.socket);
  SendEgress(control.get(), EgressHello{options.token});
  std::optional<TlsContext> tls;
  std::string tls_error;
  try {
    tls.emplace(options.ca_file);
  } catch (const Error& error) {
    tls_error = error.what();
    LogError("secrets cannot be added, because TLS is not available", {{"why", error.what()}});
  }
  Loop loop;
  const EgressServer server(loop, std::move(control), LookUp, tls ? &*tls : nullptr, tls_error,
                            [&loop] { loop.Stop(); });
  loop.Run();
  // Does not wait for lookups, which may hang for long: nobody needs their answers.
  ::_exit(0);
}

}  // namespace hutch

// SPDX-License-Identifier: Apache-2.0

#include "agent/peers.h"

#include <utility>

namespace hutch {

bool Peers::Add(Peer& peer) {
  const auto [it, added] = all_.try_emplace(peer.id());
  if (added) it->second.peer = &peer;
  return added;
}

std::optional<Peers::State> Peers::Remove(uint64_t peer) {
  auto found = all_.extract(peer);
  if (!found) return std::nullopt;
  return std::move(found.mapped());
}

Peers::State* Peers::Find(uint64_t peer) {
  const auto found = all_.find(peer);
  return found == all_.end() ? nullptr : &found->second;
}

void Peers::Send(uint64_t peer, const Message& message, std::span<const int> descriptors) {
  if (State* state = Find(peer)) state->peer->Send(message, descriptors);
}

void Peers::Fail(uint64_t peer, uint64_t request, const Error& error) {
  State* state = Find(peer);
  if (state == nullptr) return;
  state->waiting.erase(request);
  state->preparing.erase(request);
  state->peer->Send(Failed{request, static_cast<int32_t>(error.code()), error.what(), error.hint(),
                           error.may_have_run(), error.figures()});
}

}  // namespace hutch

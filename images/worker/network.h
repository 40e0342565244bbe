// SPDX-License-Identifier: Apache-2.0

// The slot's network namespace, which has only a loopback device. It is kept from cell to cell,
// because a new one costs a millisecond of CPU, unless a cell used it: ports, connections in
// TIME_WAIT and counters would show that to the next one.
//
// The cell's side of a network: each host that the cell may reach has a loopback address there
// (/etc/hosts names it), and a forwarder (forwarder.cc) listens on it before the cell exists.
//
// The slot binds the listeners, because ports below 1024 need a capability, and executes the
// forwarder, which loses it by that. There is one for each cell: the slot ends it before the next.
//
// Thread contract: called in a slot, which is single-threaded; LoadNetwork() once.
#pragma once

#include <cstddef>

namespace hutch {

// Reads `text`, lines "number address port name" (name "-": none), for StartForwarder(), opens the
// forwarder's program, and writes what /etc/hosts shall say to `hosts`. nullptr, or the step that
// failed, with errno set. Without lines nothing is done: there is no network.
// REQUIRES: the container's own root is still there.
const char* LoadNetwork(const char* text, char* hosts, size_t size);

// In a new namespace: its loopback, and how much its sockets may hold. nullptr, or the step that
// failed, with errno set.
const char* PrepareNetwork();
// Records the state of the unused namespace. REQUIRES: no cell was in it yet.
void WatchNetwork();
// Moves the calling process into a new namespace if the one of WatchNetwork() was used since; where
// that was not called, does nothing. nullptr, or the step that failed, with errno set. REQUIRES: no
// cell and no forwarder is left.
const char* RenewNetwork();

bool has_network();
// A descriptor to be kept as kForwarderFd; -1: none.
int forwarder_program();

// Starts the forwarder of one cell on `channel`. nullptr, or the step that failed, with errno set.
const char* StartForwarder(int channel);
// Ends the forwarder, if there is one, and waits for its exit.
void StopForwarder();

}  // namespace hutch

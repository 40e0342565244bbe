// SPDX-License-Identifier: Apache-2.0

#include "pool/cell_orders.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace hutch {
namespace {

constexpr auto kCrowdedPeriod = std::chrono::milliseconds(5);

bool EndsCall(const FrameHeader& order) {
  return order.kind == FrameKind::kArm && order.a == kBetweenCalls;
}

// Whether `one`, which waits, is sent no more where this comes after it.
bool Replaces(const FrameHeader& order, const FrameHeader& one) {
  if (one.kind != order.kind) return false;
  // An interrupt is not lost to what has the process look for commands.
  if (order.kind == FrameKind::kInterrupt) return (one.a == 0) == (order.a == 0);
  // The end of a call is kept before the limits of the next one, which it begins.
  return EndsCall(order) || !EndsCall(one);
}

}  // namespace

CellOrders::CellOrders(Loop& loop, const OrderLink& link, uint64_t cell)
    : loop_(loop), link_(link), cell_(cell) {}

CellOrders::~CellOrders() { loop_.Cancel(timer_); }

void CellOrders::Arm(uint64_t timeout_ms, uint64_t cpu_ms, uint64_t result_kb) {
  const auto result = static_cast<uint32_t>(std::min<uint64_t>(result_kb, kBetweenCalls - 1));
  Send({.kind = FrameKind::kArm, .a = result, .id = cell_, .b = timeout_ms, .c = cpu_ms});
}

void CellOrders::ArmLoading(uint64_t cpu_ms) {
  link_.send({.kind = FrameKind::kArm, .a = kLoading, .id = cell_, .c = cpu_ms}, {});
}

void CellOrders::EndCall(uint64_t cpu_ms) {
  Send({.kind = FrameKind::kArm, .a = kBetweenCalls, .id = cell_, .c = cpu_ms});
}

void CellOrders::Interrupt(uint64_t user, uint32_t call) {
  Send({.kind = FrameKind::kInterrupt, .a = call, .id = cell_, .b = user});
}

void CellOrders::RestartUser(uint64_t user) {
  Send({.kind = FrameKind::kRestart, .id = cell_, .b = user});
}

void CellOrders::Send(const FrameHeader& order) {
  if (held_.empty() && !link_.crowded()) {
    link_.send(order, {});
    return;
  }
  std::erase_if(held_, [&](const FrameHeader& one) { return Replaces(order, one); });
  held_.push_back(order);
  if (timer_ != 0) return;
  timer_ = loop_.After(kCrowdedPeriod, [this] { SendHeld(); });
}

void CellOrders::SendHeld() {
  timer_ = 0;
  for (const FrameHeader& order : std::exchange(held_, {})) Send(order);
}

}  // namespace hutch

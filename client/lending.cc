// SPDX-License-Identifier: Apache-2.0

#include "client/lending.h"

#include <algorithm>
#include <unordered_set>

#include "wire/cell_frame.h"

namespace hutch {
namespace {

constexpr size_t kMaxLent = 4;  // segments lent as they are: a cell takes 8 descriptors with a call

constexpr size_t kLargestSpare = 16 << 20;

size_t AlignUp(size_t n) {
  return (n + kArgumentAlignment - 1) / kArgumentAlignment * kArgumentAlignment;
}

}  // namespace

std::vector<uint64_t> Lending::Lend(const std::vector<Buffer>& buffers, const std::string& worker,
                                    std::vector<Fd>& descriptors) {
  before_ = loans_.size();
  std::vector<uint64_t> places;  // descriptor, offset, size
  std::vector<std::string_view> copied;
  Loans lent;
  size_t total = 0;
  for (const Buffer& buffer : buffers) {
    const bool as_it_is = buffer.segment != nullptr && lent.size() < kMaxLent;
    if (as_it_is) {
      auto found = std::ranges::find(lent, buffer.segment);
      const auto index = static_cast<uint64_t>(found - lent.begin()) + 1;
      if (found == lent.end()) lent.push_back(buffer.segment);
      places.insert(places.end(), {index, 0, buffer.bytes.size()});
      continue;
    }
    const uint64_t flags = buffer.is_bytes ? kFlagBytes : 0;
    places.insert(places.end(), {flags, total, buffer.bytes.size()});
    copied.push_back(buffer.bytes);
    total = AlignUp(total + buffer.bytes.size());
  }
  if (!copied.empty()) {
    lent.insert(lent.begin(), TakeFor(total, worker));
    lent.front()->Fill(copied);
  } else {
    for (size_t i = 0; i < places.size(); i += 3) --places[i];
  }
  for (std::shared_ptr<Segment>& segment : lent) {
    descriptors.push_back(segment->Lend());
    loans_.push_back(std::move(segment));
  }
  return places;
}

std::shared_ptr<Segment> Lending::TakeFor(size_t size, const std::string& worker) {
  std::shared_ptr<Segment> spare = std::exchange(spare_, nullptr);
  if (spare != nullptr && spare->capacity() >= size && spare->capacity() / 2 <= size) return spare;
  return segments_->Take(size, worker);
}

void Lending::TakeBackUnsent() {
  for (size_t i = before_; i < loans_.size(); ++i) loans_[i]->Ended();
  loans_.resize(before_);
}

void Lending::FreeReturned(bool more) {
  const auto first = loans_.begin() + static_cast<ptrdiff_t>(more ? 0 : before_);
  const auto held = std::remove_if(first, loans_.end(), [&](const std::shared_ptr<Segment>& one) {
    if (one->IsHeldElsewhere()) return false;
    if (one.use_count() == 1 && one->capacity() <= kLargestSpare) spare_ = one;
    return true;
  });
  loans_.erase(held, loans_.end());
  before_ = loans_.size();
}

void Lending::FreeAll() {
  loans_.clear();
  spare_.reset();
  before_ = 0;
}

uint64_t Lending::bytes() const {
  uint64_t all = 0;
  std::unordered_set<const Segment*> counted;  // one that is lent as it is may be lent again
  for (const std::shared_ptr<Segment>& one : loans_) {
    if (counted.insert(one.get()).second) all += one->capacity();
  }
  return all;
}

}  // namespace hutch

// SPDX-License-Identifier: Apache-2.0

#include "loop/descriptors.h"

#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "wire/fd.h"

namespace hutch {

int RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);  // refused: the limit stays what it is
  }
  return DescriptorLimit();
}

int DescriptorLimit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int>(
      std::min<rlim_t>(limit.rlim_cur, static_cast<rlim_t>(std::numeric_limits<int>::max())));
}

bool NoDescriptorForCells() {
  const Fd probe(::eventfd(0, EFD_CLOEXEC));
  return !probe || probe.get() >= CellsBelow(DescriptorLimit());
}

}  // namespace hutch

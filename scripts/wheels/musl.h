// SPDX-License-Identifier: Apache-2.0

// What glibc has, musl has not, and our programs use: included ahead of each of their files where
// they are built for wheels.
#pragma once

#include <errno.h>

#define W_STOPCODE(signal) ((signal) << 8 | 0x7f)
#define TEMP_FAILURE_RETRY(call)            \
  (__extension__({                          \
    long result;                            \
    do result = static_cast<long>(call);    \
    while (result == -1 && errno == EINTR); \
    result;                                 \
  }))

using __rlimit_resource = int;

// SPDX-License-Identifier: Apache-2.0

// System calls without libc: for PID 1 of a cell, which shares memory and thread-local storage
// (errno) with the slot. Returns what the kernel returns: negative errno on failure. Touches
// nothing but registers and the memory it is given.
#pragma once

namespace hutch {

inline long RawCall(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0,
                    long f = 0) {
#if defined(__x86_64__)
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  register long x4 asm("x4") = e;
  register long x5 asm("x5") = f;
  asm volatile("svc 0"
               : "+r"(x0)
               : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
               : "memory");
  return x0;
#else
#error "hutch runs on x86_64 and aarch64"
#endif
}

template <typename Pointer>
inline long Arg(Pointer* pointer) {
  return reinterpret_cast<long>(pointer);
}

}  // namespace hutch

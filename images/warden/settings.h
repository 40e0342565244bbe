// SPDX-License-Identifier: Apache-2.0

// What the warden is started with (main.cc).
#pragma once

#include "images/warden/namespace_probe.h"

namespace hutch {

struct Settings {
  const char* socket = nullptr;
  char* token = nullptr;
  const char* python = nullptr;
  const char* zygote = nullptr;  // the path of zygote.py
  NamespaceRefusal namespaces;
  bool any_environment = false;  // started ahead of the one it will serve
};

}  // namespace hutch

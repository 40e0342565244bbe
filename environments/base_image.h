// SPDX-License-Identifier: Apache-2.0

// Base images that callers name: an OCI image whose Python a call runs on, in place of the one
// derived from the caller's own interpreter.
//
// Each is inspected once before anything is built on it: it is there or can be pulled, it is for
// this machine, has a Python of the version that the call needs, and our own binaries work on its
// libraries. The answer comes from the image, so it is used for nothing but what the image's own
// workers run. Thread-safe; Get() blocks.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "environments/builder.h"
#include "environments/environment_spec.h"
#include "podman/podman.h"
#include "wire/paths.h"
#include "wire/thread_annotations.h"

namespace hutch {

struct BaseImage {
  std::string id;                       // 64 hex digits
  std::string python = kDerivedPython;  // its interpreter's path
  std::string version;                  // "3.12.4"
  std::string path;                     // its PATH, "": as in the derived one
  std::string libc;                     // the version of its glibc: "2.36"
  std::vector<std::string> shown;       // directories of its own, for cells to see
  std::vector<std::string> packages;    // directories of packages that its Python has
  std::string no_installer;             // why nothing can be built from source on it; "": it can

  bool operator==(const BaseImage&) const = default;
};

// Whether the reference names a registry on this machine, which may be used without TLS.
bool IsLoopback(std::string_view reference);

// Checks what interpreter.py reported of the image. Throws kInvalidArgument for an image that
// cannot serve `spec`: the message names `spec.base`, what is needed and what the image has.
BaseImage ReadInterpreter(const std::string& text, const EnvironmentSpec& spec);

class BaseImages {
 public:
  using ProgressFn = std::function<void(const BuildProgress&)>;
  using Cancelled = std::function<bool()>;

  // Both outlive it.
  BaseImages(Podman& podman, const Paths& paths) : podman_(podman), paths_(paths) {}

  // REQUIRES: CheckSpec passed. The image of `spec.base`, pulled if it is not there. `progress` is
  // called on the caller's thread; either function may be null. Throws kInvalidArgument where it
  // cannot serve the call, kPodman where it cannot be pulled, kTimeout, kCancelled,
  // kMissingRuntime.
  BaseImage Get(const EnvironmentSpec& spec, std::chrono::steady_clock::time_point deadline,
                const ProgressFn& progress, const Cancelled& cancelled);

  // Whether a build directory and its container belong to an inspection that is under way.
  bool IsLooking(const std::string& name);

 private:
  ImageInfo Find(const EnvironmentSpec& spec, std::chrono::steady_clock::time_point deadline,
                 const ProgressFn& progress, const Cancelled& cancelled);
  std::string Look(const EnvironmentSpec& spec, const std::string& image,
                   std::chrono::steady_clock::time_point deadline, const Cancelled& cancelled);

  Podman& podman_;
  const Paths& paths_;
  Mutex mutex_;
  std::set<std::string> looking_ GUARDED_BY(mutex_);
  std::map<std::string, std::string> looks_
      GUARDED_BY(mutex_);  // by image and runtime: what was said
};

}  // namespace hutch

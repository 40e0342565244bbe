// SPDX-License-Identifier: Apache-2.0

// Base images that callers name: an OCI image whose Python a call runs on, in place of the one
// derived from the caller's own interpreter.
//
// Each is looked at once before anything is built on it: it is there or can be pulled, it is for
// this machine, has a Python of the version that the call needs, and our own binaries work on its
// libraries. What the look says is the image's word: it decides what its own workers run, and
// nothing else. Thread-safe; Get() blocks.
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
  std::string no_installer;             // why nothing is built from source on it, "": it can be

  bool operator==(const BaseImage&) const = default;
};

// Whether a registry there is spoken to without TLS: on this machine, as `podman` and its like take
// it to be where they are told to.
bool IsLoopback(std::string_view reference);

// What interpreter.py said of the image, checked. Throws kInvalidArgument for what cannot serve
// `spec`: it names `spec.base`, what was wanted and what is there.
BaseImage ReadInterpreter(const std::string& text, const EnvironmentSpec& spec);

class BaseImages {
 public:
  using ProgressFn = std::function<void(const BuildProgress&)>;
  using Cancelled = std::function<bool()>;

  // Both outlive it.
  BaseImages(Podman& podman, const Paths& paths) : podman_(podman), paths_(paths) {}

  // REQUIRES: CheckSpec passed. The image of `spec.base`, pulled if it is not there. `progress` is
  // called on the caller's thread; either function may be null. Throws kInvalidArgument where it
  // cannot serve the call, kPodman where it cannot be had, kTimeout, kCancelled, kMissingRuntime.
  BaseImage Get(const EnvironmentSpec& spec, std::chrono::steady_clock::time_point deadline,
                const ProgressFn& progress, const Cancelled& cancelled);

  // Whether a build directory and its container are of an image that is being looked at.
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

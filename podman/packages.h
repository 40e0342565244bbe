// SPDX-License-Identifier: Apache-2.0

// The commands that install what a host lacks, as its package manager wants them.
//
// Pure but for HostSystem, which reads a file. For any thread.
#pragma once

#include <string>
#include <string_view>

namespace hutch {

enum class Package {
  kPodman,         // with all that rootless containers need
  kOciRuntime,     // crun
  kUidHelpers,     // newuidmap and newgidmap
  kNetworkHelper,  // passt where the system's Podman is made for it, slirp4netns before
  kGvisor,         // runsc
};

// The text of /etc/os-release; "" where there is none.
std::string HostSystem();

// One line to paste. Of a system that `os_release` does not name, or that we do not know: for
// Podman the lines of two, and for anything else the names of its packages.
std::string InstallCommand(Package package, std::string_view os_release);
inline std::string InstallCommand(Package package) { return InstallCommand(package, HostSystem()); }

}  // namespace hutch

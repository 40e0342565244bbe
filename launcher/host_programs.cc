// SPDX-License-Identifier: Apache-2.0

#include "launcher/host_programs.h"

#include <unistd.h>

#include <cstdlib>

#include "podman/packages.h"
#include "wire/error.h"

namespace hutch {
namespace {

std::string FindProgram(const std::string& name, const std::string& search) {
  size_t begin = 0;
  while (begin <= search.size()) {
    size_t end = search.find(':', begin);
    if (end == std::string::npos) end = search.size();
    const std::string path = search.substr(begin, end - begin) + "/" + name;
    if (path[0] == '/' && ::access(path.c_str(), X_OK) == 0) return path;
    begin = end + 1;
  }
  return {};
}

std::string SearchPath() {
  const std::string own = ::geteuid() == 0 ? "" : Variable("PATH");
  return own.empty() ? kSafePath : own + ":" + kSafePath;
}

}  // namespace

std::string Variable(const char* name) {
  const char* value = ::secure_getenv(name);
  return value == nullptr ? "" : value;
}

std::string FindTool(const std::string& name) { return FindProgram(name, SearchPath()); }

bool HasUserManager(const Paths& paths) {
  if (paths.service_user) return false;
  return ::access((paths.xdg_runtime_dir + "/systemd/private").c_str(), R_OK) == 0 &&
         !FindTool("systemd-run").empty();
}

std::string FindPodman() {
  const std::string path = FindProgram("podman", SearchPath());
  if (path.empty()) {
    throw Error(Code::kPodmanMissing, "Podman is not installed", InstallCommand(Package::kPodman));
  }
  return path;
}

std::vector<std::string> PodmanEnvironment(const Paths& paths) {
  std::vector<std::string> environment = {
      "HOME=" + paths.home,
      "XDG_RUNTIME_DIR=" + paths.xdg_runtime_dir,
      "PATH=" + SearchPath(),
      "LANG=C.UTF-8",
  };
  if (paths.service_user) {
    environment.push_back("USER=" + std::string(kServiceUser));
    environment.push_back("CONTAINERS_CONF=" + paths.home + "/.config/containers/containers.conf");
  } else {
    // Podman's own settings of this user, where they moved them; the bus is how their systemd makes
    // cgroups.
    for (const char* name : {"XDG_CONFIG_HOME", "XDG_DATA_HOME", "CONTAINERS_CONF",
                             "CONTAINERS_STORAGE_CONF", "DBUS_SESSION_BUS_ADDRESS"}) {
      if (const std::string value = Variable(name); !value.empty()) {
        environment.push_back(std::string(name) + "=" + value);
      }
    }
  }
  return environment;
}

}  // namespace hutch

// SPDX-License-Identifier: Apache-2.0

#include "podman/packages.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

namespace hutch {
namespace {

struct Manager {
  const char* install;
  const char* podman;  // its packages, without the network helper
  const char* uid_helpers;
  const char* gvisor;  // "": it has no such package
};

constexpr Manager kApt = {"sudo apt-get install --no-install-recommends", "podman crun uidmap",
                          "uidmap", "runsc"};
constexpr char kAptMore[] = " netavark aardvark-dns catatonit containers-storage dbus-user-session";
constexpr Manager kDnf = {"sudo dnf install", "podman crun shadow-utils", "shadow-utils", ""};
constexpr Manager kZypper = {"sudo zypper install", "podman crun shadow", "shadow", ""};
constexpr Manager kApk = {"sudo apk add", "podman crun shadow-uidmap", "shadow-uidmap", ""};
constexpr Manager kPacman = {"sudo pacman -S", "podman crun shadow", "shadow", ""};

// An ID of os-release, and the first version whose Podman is made for passt.
struct System {
  const char* id;
  const Manager* manager;
  double passt_since;
};
constexpr double kNever = 1e9;
constexpr System kSystems[] = {
    {"debian", &kApt, 13},  {"ubuntu", &kApt, 24.04},
    {"fedora", &kDnf, 40},  {"rhel", &kDnf, 10},
    {"centos", &kDnf, 10},  {"amzn", &kDnf, kNever},
    {"suse", &kZypper, 16}, {"opensuse-tumbleweed", &kZypper, 0},
    {"alpine", &kApk, 0},   {"arch", &kPacman, 0},
};

// A value of os-release, without its quotes.
std::string ReleaseValue(std::string_view os_release, std::string_view key) {
  std::istringstream lines{std::string(os_release)};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key) || line.substr(key.size(), 1) != "=") continue;
    std::string value;
    for (const char c : line.substr(key.size() + 1)) {
      if (c != '"' && c != '\'') value += c;
    }
    return value;
  }
  return {};
}

// By its own name, else by that of the first system that it says it is like.
const System* FindSystem(std::string_view os_release) {
  std::istringstream names(ReleaseValue(os_release, "ID") + " " +
                           ReleaseValue(os_release, "ID_LIKE"));
  for (std::string name; names >> name;) {
    for (const System& system : kSystems) {
      if (name == system.id) return &system;
    }
  }
  return nullptr;
}

// A system without a version is one that is always new.
bool HasPasst(const System& system, std::string_view os_release) {
  const std::string version = ReleaseValue(os_release, "VERSION_ID");
  return version.empty() || std::strtod(version.c_str(), nullptr) >= system.passt_since;
}

std::string OfPodman(const Manager& manager, bool passt) {
  return std::string(manager.install) + " " + manager.podman + (passt ? " passt" : " slirp4netns") +
         (&manager == &kApt ? kAptMore : "");
}

}  // namespace

std::string HostSystem() {
  std::ifstream file("/etc/os-release");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string InstallCommand(Package package, std::string_view os_release) {
  const System* system = FindSystem(os_release);
  const Manager* manager = system == nullptr ? nullptr : system->manager;
  const bool passt = system == nullptr || HasPasst(*system, os_release);
  const auto install = [manager](const std::string& name) {
    return manager == nullptr ? "install the package " + name
                              : std::string(manager->install) + " " + name;
  };
  switch (package) {
    case Package::kPodman:
      if (manager != nullptr) return OfPodman(*manager, passt);
      return "Debian, Ubuntu: " + OfPodman(kApt, true) + "; Fedora, RHEL: " + OfPodman(kDnf, true);
    case Package::kOciRuntime:
      return install("crun");
    case Package::kUidHelpers:
      return install(manager == nullptr ? "uidmap" : manager->uid_helpers);
    case Package::kNetworkHelper:
      return install(passt ? "passt" : "slirp4netns");
    case Package::kGvisor:
      if (manager != nullptr && manager->gvisor[0] != '\0') return install(manager->gvisor);
      return "install runsc as https://gvisor.dev/docs/user_guide/install/ says";
  }
  return {};
}

}  // namespace hutch

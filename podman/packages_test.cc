// SPDX-License-Identifier: Apache-2.0

#include "podman/packages.h"

#include <gtest/gtest.h>

#include <string>

namespace hutch {
namespace {

TEST(Packages, AreNamedAsEachSystemsManagerWantsThem) {
  const struct {
    const char* os_release;
    const char* podman;
    const char* uid_helpers;
  } cases[] = {
      {"ID=debian\nVERSION_ID=\"12\"\n",
       "sudo apt-get install --no-install-recommends podman crun uidmap slirp4netns netavark "
       "aardvark-dns catatonit containers-storage dbus-user-session",
       "sudo apt-get install --no-install-recommends uidmap"},
      {"ID=debian\nVERSION_ID=\"13\"\n",
       "sudo apt-get install --no-install-recommends podman crun uidmap passt netavark "
       "aardvark-dns catatonit containers-storage dbus-user-session",
       "sudo apt-get install --no-install-recommends uidmap"},
      {"ID=fedora\nVERSION_ID=41\n", "sudo dnf install podman crun shadow-utils passt",
       "sudo dnf install shadow-utils"},
      {"ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\nVERSION_ID=\"15.6\"\n",
       "sudo zypper install podman crun shadow slirp4netns", "sudo zypper install shadow"},
      {"ID=alpine\nVERSION_ID=3.21.0\n", "sudo apk add podman crun shadow-uidmap passt",
       "sudo apk add shadow-uidmap"},
      {"ID=arch\n", "sudo pacman -S podman crun shadow passt", "sudo pacman -S shadow"},
  };
  for (const auto& of : cases) {
    EXPECT_EQ(InstallCommand(Package::kPodman, of.os_release), of.podman);
    EXPECT_EQ(InstallCommand(Package::kUidHelpers, of.os_release), of.uid_helpers);
  }
}

TEST(Packages, AreThoseOfTheSystemThatAnotherIsLike) {
  const std::string mint = "NAME='Linux Mint'\nID=linuxmint\nID_LIKE=\"ubuntu debian\"\n";
  EXPECT_TRUE(InstallCommand(Package::kOciRuntime, mint).starts_with("sudo apt-get install "));
  const std::string rocky = "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\nVERSION_ID=\"9.4\"\n";
  EXPECT_EQ(InstallCommand(Package::kNetworkHelper, rocky), "sudo dnf install slirp4netns");
}

TEST(Packages, NameTheNetworkHelperThatTheSystemsPodmanIsMadeFor) {
  const auto helper = [](const char* os_release) {
    const std::string command = InstallCommand(Package::kNetworkHelper, os_release);
    return command.substr(command.rfind(' ') + 1);
  };
  EXPECT_EQ(helper("ID=ubuntu\nVERSION_ID=\"22.04\"\n"), "slirp4netns");
  EXPECT_EQ(helper("ID=ubuntu\nVERSION_ID=\"24.04\"\n"), "passt");
  EXPECT_EQ(helper("ID=debian\n"), "passt") << "testing and unstable have no version";
}

TEST(Packages, OfAnUnknownSystemAreThoseOfTwo) {
  for (const char* os_release : {"", "ID=other\n", "IDEA=debian\n"}) {
    const std::string command = InstallCommand(Package::kPodman, os_release);
    EXPECT_NE(command.find("apt-get install"), std::string::npos);
    EXPECT_NE(command.find("dnf install"), std::string::npos);
    EXPECT_EQ(command.find('\n'), std::string::npos);
    EXPECT_EQ(InstallCommand(Package::kOciRuntime, os_release), "install the package crun");
  }
}

TEST(Packages, SayWhereGvisorComesFromWhereNoManagerHasIt) {
  EXPECT_EQ(InstallCommand(Package::kGvisor, "ID=debian\nVERSION_ID=\"12\"\n"),
            "sudo apt-get install --no-install-recommends runsc");
  EXPECT_NE(InstallCommand(Package::kGvisor, "ID=fedora\n").find("https://gvisor.dev/"),
            std::string::npos);
}

}  // namespace
}  // namespace hutch

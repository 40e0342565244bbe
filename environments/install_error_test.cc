// SPDX-License-Identifier: Apache-2.0

#include "environments/install_error.h"

#include <gtest/gtest.h>

namespace hutch {
namespace {

// What uv 0.13 and its older relatives print.
constexpr char kMisspelt[] =
    "error: No solution found when resolving dependencies\n"
    "  cause: Because pandsa was not found in the package registry and you require pandsa, we can "
    "conclude that your "
    "requirements are unsatisfiable.\n";
constexpr char kDrawn[] =
    "  \xc3\x97 No solution found when resolving dependencies:\n"
    "  \xe2\x95\xb0\xe2\x94\x80\xe2\x96\xb6 Because pandsa was not found in the package registry\n"
    "      and you require pandsa, we can conclude that your requirements are unsatisfiable.\n";
constexpr char kSentence[] =
    "Because pandsa was not found in the package registry and you require pandsa, we can conclude "
    "that your requirements "
    "are unsatisfiable.";

TEST(InstallError, IsTheResolversOwnSentence) {
  EXPECT_EQ(InstallerSentence(kMisspelt), kSentence);
  EXPECT_EQ(InstallerSentence(kDrawn), kSentence);
  const Error error = InstallError("resolve", kMisspelt);
  EXPECT_EQ(error.code(), Code::kInstallFailed);
  EXPECT_STREQ(error.what(), kSentence);
  EXPECT_NE(error.hint().find("spelling"), std::string::npos);
}

TEST(InstallError, JoinsWhatTheResolverSaidOnSeveralLines) {
  const std::string sentence = InstallerSentence(
      "error: No solution found when resolving dependencies\n"
      "  cause: Because requests==2.31.0 depends on urllib3>=1.21.1,<3, we can conclude that you "
      "require that.\n"
      "         And because you require urllib3==1.20, we can conclude that your requirements are "
      "unsatisfiable.\n");
  EXPECT_TRUE(sentence.starts_with("Because requests==2.31.0"));
  EXPECT_TRUE(sentence.ends_with(
      "that. And because you require urllib3==1.20, we can conclude that your requirements "
      "are unsatisfiable."));
}

TEST(InstallError, SaysHowToAllowASourceBuildWhereThereIsNoWheel) {
  const Error error = InstallError(
      "resolve",
      "error: No solution found when resolving dependencies\n"
      "  cause: Because all versions of docopt have no usable wheels and you require docopt\n"
      "\n"
      "hint: Wheels are required for `docopt` because building from source is disabled\n");
  EXPECT_NE(error.hint().find("allow_sdists"), std::string::npos);
  EXPECT_EQ(std::string(error.what()).find("hint"), std::string::npos);
}

TEST(InstallError, TellsAConflictFromATypo) {
  const Error error = InstallError(
      "resolve",
      "cause: And because you require urllib3==1.20, your requirements are unsatisfiable.");
  EXPECT_NE(error.hint().find("exclude each other"), std::string::npos);
}

TEST(InstallError, NamesTheNetworkWhenTheIndexIsOutOfReach) {
  const Error error =
      InstallError("resolve",
                   "error: Request failed after 1 retry\n"
                   "  cause: Failed to fetch: https://me:secret@index.example/simple/six/\n"
                   "  cause: dns error\n");
  EXPECT_NE(error.hint().find("network"), std::string::npos);
  EXPECT_EQ(std::string(error.what()).find("secret"), std::string::npos);
  EXPECT_NE(std::string(error.what()).find("https://index.example/simple/six/"), std::string::npos);
}

TEST(InstallError, CallsAFullDiskAFullDisk) {
  const Error error =
      InstallError("download", "error: Failed to write: No space left on device (os error 28)");
  EXPECT_EQ(error.code(), Code::kPlatform);
  EXPECT_NE(std::string(error.what()).find("the disk is full"), std::string::npos);
}

TEST(ScrubCredentials, RemovesUserAndPasswordFromEveryUrl) {
  EXPECT_EQ(ScrubCredentials("a https://u:p@h/x b http://t0ken@i:8/ c"),
            "a https://h/x b http://i:8/ c");
  EXPECT_EQ(ScrubCredentials("https://u:p%40@x@host/"), "https://host/");
  EXPECT_EQ(ScrubCredentials("https://host/a@b"), "https://host/a@b");
  EXPECT_EQ(ScrubCredentials("\x1b[31mred\x07"), " [31mred ");
}

TEST(InstallError, IsShortHoweverLongTheLog) {
  EXPECT_LE(InstallerSentence(std::string(100'000, 'x')).size(), 1600u);
  EXPECT_EQ(InstallerSentence(""), "the installer said nothing");
}

}  // namespace
}  // namespace hutch

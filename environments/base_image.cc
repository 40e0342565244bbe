// SPDX-License-Identifier: Apache-2.0

#include "environments/base_image.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "podman/files.h"
#include "wire/clock.h"
#include "wire/error.h"

namespace hutch {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kMaxPath = 200;  // images/worker/slot.cc has room for so much
constexpr size_t kMaxDirectories = 64;
constexpr seconds kLook(60);

[[noreturn]] void Refuse(const EnvironmentSpec& spec, const std::string& what,
                         const std::string& hint) {
  throw Error(Code::kInvalidArgument, "the base " + spec.base + " " + what, hint);
}

// One line for the user.
std::string Printable(std::string text, size_t most) {
  text.resize(std::min(text.size(), most));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\x9b') c = ' ';
  }
  return text;
}

bool IsPlainPath(const std::string& path) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("._+-/").find(c) != std::string_view::npos;
  };
  if (path.size() < 2 || path.size() > kMaxPath || path[0] != '/') return false;
  if (!std::all_of(path.begin(), path.end(), plain)) return false;
  return std::ranges::none_of(fs::path(path), [](const fs::path& part) { return part == ".."; });
}

std::string Text(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::vector<std::string> Directories(const Json& object, const char* key) {
  std::vector<std::string> paths;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return paths;
  for (const Json& item : *found) {
    if (paths.size() == kMaxDirectories || !item.is_string()) break;
    if (std::string path = item.get<std::string>(); IsPlainPath(path))
      paths.push_back(std::move(path));
  }
  return paths;
}

// Directories of an image that cells may not see: Hutch or the system mounts something there.
bool MayBeShown(const std::string& path) {
  for (const std::string_view taken : {"/opt/hutch", "/opt/env", "/opt/modules", "/run", "/proc",
                                       "/sys", "/dev", "/tmp", "/work", "/var", "/store"}) {
    if (path == taken || (path.starts_with(taken) && path[taken.size()] == '/')) return false;
  }
  return path != "/opt" && path != "/etc";
}

// As uname() and Go name it.
std::string Machine(const std::string& architecture) {
  if (architecture == "amd64") return "x86_64";
  return architecture == "arm64" ? "aarch64" : architecture;
}

// The hint for a failed pull, by its message.
std::string HintOf(const std::string& said) {
  const auto has = [&said](std::initializer_list<std::string_view> words) {
    return std::ranges::any_of(
        words, [&](std::string_view word) { return said.find(word) != std::string::npos; });
  };
  if (has({"short-name", "unqualified-search"}))
    return "write the registry in front, as docker.io/library/python:3.12-slim";
  if (has({"no space left"})) return "free some space where Podman keeps images";
  if (has({"x509", "certificate"}))
    return "this host does not trust the registry's certificate: add its CA to the host's";
  if (has({"manifest unknown", "name unknown", "StatusCode: 404", "not found", "denied",
           "unauthorized"}))
    return "check its name and tag; for a private one say `hutch podman login` first";
  return "check that the registry can be reached from here, or bring the image by `hutch podman "
         "load`";
}

std::string LookName() {
  static std::atomic<unsigned> next{0};
  return "look-" + std::to_string(::getpid()) + "-" + std::to_string(next++);
}

}  // namespace

bool IsLoopback(std::string_view reference) {
  static const std::regex kLoopback(
      R"((localhost:[0-9]+|127\.[0-9.]+(:[0-9]+)?|\[::1\](:[0-9]+)?))");
  const size_t slash = reference.find('/');
  return slash != reference.npos &&
         std::regex_match(std::string(reference.substr(0, slash)), kLoopback);
}

BaseImage ReadInterpreter(const std::string& text, const EnvironmentSpec& spec) {
  const Json said = Json::parse(text, nullptr, false);
  BaseImage base;
  base.python.clear();
  if (said.is_object()) {
    base.python = Text(said, "python");
    base.version = Text(said, "version");
  }
  static const std::regex kVersion(R"(3\.[0-9]{1,3}\.[0-9A-Za-z.+]{1,24})");
  if (!IsPlainPath(base.python) || !std::regex_match(base.version, kVersion)) {
    Refuse(spec, "has a python3 that does not run",
           "try `hutch podman run --rm --user 1000 --entrypoint python3 " + spec.base + " -V`");
  }
  const std::string& wanted = spec.python_version;
  if (base.version != wanted && !base.version.starts_with(wanted + ".")) {
    const std::string has = base.version.substr(0, base.version.find('.', 2));
    Refuse(spec, "has Python " + base.version + ", and the call needs " + wanted,
           "name an image with Python " + wanted + ", or call from Python " + has +
               "; programs given as text may say Environment(base=..., python=\"" + has + "\")");
  }
  if (Text(said, "implementation") != "cpython")
    Refuse(spec, "has a Python that is not CPython", "name an image with CPython " + wanted);
  if ("linux_" + Text(said, "machine") != spec.platform) {
    Refuse(spec,
           "is for " + Printable(Text(said, "machine"), 40) + ", and this host is " + spec.platform,
           "name an image for this machine");
  }
  if (const std::string why = Text(said, "cell"); !why.empty()) {
    Refuse(spec, "cannot run what a worker needs: " + Printable(why, 400),
           "name an image with a recent glibc (Debian 12 or Ubuntu 22.04 and later); Alpine's "
           "musl does not serve");
  }
  static const std::regex kLibc(R"(2\.[0-9]{1,3})");
  base.libc = Text(said, "libc");
  if (!std::regex_match(base.libc, kLibc))
    Refuse(spec, "has no glibc", "name an image that has one, such as Debian's");
  base.path = Printable(Text(said, "path"), 2048);
  base.shown = Directories(said, "shown");
  std::erase_if(base.shown, [](const std::string& path) { return !MayBeShown(path); });
  base.packages = Directories(said, "packages");
  base.no_installer = Printable(Text(said, "installer"), 400);
  return base;
}

BaseImage BaseImages::Get(const EnvironmentSpec& spec, Clock::time_point deadline,
                          const ProgressFn& progress, const Cancelled& cancelled) {
  const ImageInfo info = Find(spec, deadline, progress, cancelled);
  if (info.os != "linux" || "linux_" + Machine(info.architecture) != spec.platform) {
    Refuse(spec,
           "is for " + Printable(info.os + "/" + info.architecture, 80) + ", and this host is " +
               spec.platform,
           "name an image for this machine");
  }
  for (const auto& [key, value] : info.annotations) {
    if (key.starts_with("run.oci.") || key.starts_with("io.podman."))
      Refuse(spec,
             "has the annotation " + Printable(key, 80) + ", which tells the runtime what to do",
             "build it without");
  }
  const std::string key = info.id + " " + spec.runtime_id;
  std::string text;
  {
    const MutexLock lock(mutex_);
    if (const auto found = looks_.find(key); found != looks_.end()) text = found->second;
  }
  if (text.empty()) {
    if (progress) progress({"base", "looking at " + spec.base, 0, 0});
    text = Look(spec, info.id, deadline, cancelled);
    const MutexLock lock(mutex_);
    looks_[key] = text;
  }
  BaseImage base = ReadInterpreter(text, spec);
  base.id = info.id;
  return base;
}

ImageInfo BaseImages::Find(const EnvironmentSpec& spec, Clock::time_point deadline,
                           const ProgressFn& progress, const Cancelled& cancelled) {
  if (auto info = podman_.InspectImage(spec.base)) return *info;
  if (spec.base.starts_with("localhost/")) {
    throw Error(Code::kInvalidArgument, "the base " + spec.base + " is not there",
                "build or load it, as by `hutch podman load -i FILE`; `hutch podman images` lists "
                "what is there");
  }
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  const std::string what = "pulling " + spec.base;
  if (progress) progress({"base", what, 0, 0});
  try {
    podman_.PullImage(
        spec.base, !IsLoopback(spec.base), std::max(left, milliseconds(1)),
        [&](const std::string& line) {
          if (progress) progress({"base", what + ": " + Printable(line, 200), 0, 0});
        },
        cancelled);
  } catch (const Error& error) {
    if (error.code() == Code::kTimeout) {
      throw Error(Code::kTimeout, "the base " + spec.base + " was not pulled in time",
                  "give it longer, or pull it ahead by `hutch podman pull`");
    }
    if (error.code() != Code::kPodman) throw;
    throw Error(Code::kPodman,
                "the base " + spec.base + " could not be pulled: " + Printable(error.what(), 800),
                HintOf(error.what()));
  }
  if (auto info = podman_.InspectImage(spec.base)) return *info;
  throw Error(Code::kPodman, "the base " + spec.base + " was pulled, but cannot be found");
}

std::string BaseImages::Look(const EnvironmentSpec& spec, const std::string& image,
                             Clock::time_point deadline, const Cancelled& cancelled) {
  const std::string name = LookName();
  const fs::path directory = fs::path(paths_.store_dir()) / "build" / name;
  const struct Looking {  // while it is, no sweep takes it away
    BaseImages& images;
    const std::string& name;
    const fs::path& directory;
    Looking(BaseImages& i, const std::string& n, const fs::path& d)
        : images(i), name(n), directory(d) {
      const MutexLock lock(images.mutex_);
      images.looking_.insert(name);
    }
    ~Looking() {
      RemoveTree(directory);
      const MutexLock lock(images.mutex_);
      images.looking_.erase(name);
    }
  } looking(*this, name, directory);
  std::error_code error;
  fs::create_directory(directory, error);
  if (error)
    throw Error(Code::kPlatform, "cannot create " + directory.string() + ": " + error.message());
  ::chmod(directory.c_str(), 0755);

  Builder builder(
      podman_, paths_, name, [](const BuildProgress&) {},
      [&] { return (cancelled && cancelled()) || Clock::now() >= deadline; });
  std::string text;
  try {
    text = builder.Look(image, spec.runtime_id, kLook);
  } catch (const Error& failure) {
    if (failure.code() == Code::kCancelled && Clock::now() >= deadline)
      throw Error(Code::kTimeout, "the base " + spec.base + " was not inspected in time");
    if (failure.code() == Code::kPodman) {
      const std::string_view said = failure.what();
      for (const std::string_view absent : {"executable file", "no such file", "not found"}) {
        if (said.find(absent) != said.npos) {
          Refuse(spec, "has no python3 in its PATH",
                 "name an image with Python " + spec.python_version +
                     ", as docker.io/library/python:" + spec.python_version + "-slim");
        }
      }
    }
    if (failure.code() != Code::kInstallFailed) throw;  // else it took too long: it said nothing
  }
  if (text.empty()) ReadInterpreter(text, spec);  // which says so
  return text;
}

bool BaseImages::IsLooking(const std::string& name) {
  const MutexLock lock(mutex_);
  return looking_.contains(name);
}

}  // namespace hutch

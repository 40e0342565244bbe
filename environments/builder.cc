// SPDX-License-Identifier: Apache-2.0

#include "environments/builder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "environments/install_error.h"
#include "podman/files.h"
#include "podman/mounts.h"
#include "wire/clock.h"
#include "wire/error.h"
#include "wire/fd.h"

namespace hutch {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kMaxBytes =
    24ull << 30;  // of one environment; the largest known ones (CUDA) have about 10 GiB
constexpr uint64_t kMaxFiles = 500'000;
constexpr uint64_t kMaxAnswer = 16u << 20;       // bytes that the import step may write, anywhere
constexpr uint64_t kMaxReport = 4 * kMaxAnswer;  // bytes that are read of what a step writes
constexpr uint64_t kReserve = 256ull << 20;      // bytes of disk that no build may take
constexpr int kImportSeconds = 30;               // for each module
constexpr milliseconds kPoll(10);
constexpr milliseconds kInspect(500);
// By default pasta gives a container the host's own address, which then leads back into the
// container: connections to an index on this host would be refused. No network uses this address
// (RFC 7335). slirp4netns has a different one by default.
constexpr const char* kPastaNetwork[] = {"-a", "192.0.0.2", "-n", "29", "-g", "192.0.0.1"};
constexpr char kAnswer[] =
    "/store/answer";  // where import and compile find the file they answer in
constexpr char kScripts[] = "/opt/hutch/environment/";

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

Json Bind(const std::string& from, const std::string& to, bool writable) {
  return {{"type", "bind"},
          {"source", from},
          {"destination", to},
          {"options", {"rbind", "nosuid", "nodev", writable ? "rw" : "ro"}}};
}

void WriteFile(const std::string& path, const std::string& text, mode_t mode) {
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
  if (!fd || ::fchmod(fd.get(), mode) != 0) ThrowErrno("create " + path, Code::kPlatform);
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(fd.get(), text.data() + at, text.size() - at);
    if (n < 0 && errno != EINTR) ThrowErrno("write " + path, Code::kPlatform);
    if (n > 0) at += static_cast<size_t>(n);
  }
}

// A link here would make us mount, move or read whatever it points to.
void CheckKind(const std::string& path, mode_t kind) {
  struct stat status;
  if (::lstat(path.c_str(), &status) == 0 && (status.st_mode & S_IFMT) == kind) return;
  throw Error(Code::kInstallFailed, "the installer left no plain file at " + path);
}

// Where the install step finds a directory of wheels.
std::string LinksAt(size_t i) { return "/links/" + std::to_string(i); }

std::string FirstOf(const std::vector<std::string>& modules) {
  if (modules.empty()) return {};
  return PrintableLine(modules.front(), 100) + (modules.size() > 1 ? ", ..." : "");
}

// Whether it is text that a resolver could have written, without control characters.
bool IsLock(const std::string& text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= 0x20 && c < 0x7f) || c == '\n' || c == '\t'; });
}

struct Free {
  uint64_t bytes, files;
};

Free FreeAt(const std::string& directory) {
  struct statvfs status;
  if (::statvfs(directory.c_str(), &status) != 0) return {UINT64_MAX, UINT64_MAX};
  const bool counted = status.f_files != 0;  // some file systems make inodes as they are wanted
  return {static_cast<uint64_t>(status.f_bavail) * status.f_frsize,
          counted ? static_cast<uint64_t>(status.f_favail) : UINT64_MAX};
}

uint64_t Less(uint64_t from, uint64_t amount) { return from > amount ? from - amount : 0; }

}  // namespace

Builder::Builder(Podman& podman, const Paths& paths, std::string name,
                 std::function<void(BuildProgress)> progress, std::function<bool()> cancelled)
    : podman_(podman),
      paths_(paths),
      name_(std::move(name)),
      directory_(paths.store_dir() + "/build/" + name_),
      progress_(std::move(progress)),
      cancelled_(std::move(cancelled)) {}

Builder::~Builder() { RemoveContainers(); }

void Builder::RemoveContainers() noexcept {
  for (const std::string& id : containers_) {
    try {
      podman_.Remove(id);
    } catch (const std::exception&) {
      // The next sweep finds it by its label.
    }
  }
  containers_.clear();
}

std::string Builder::ContainerSpec(const std::string& step, const std::vector<std::string>& command,
                                   const std::string& mounts_json) const {
  // The step that runs packages' code, or an image's, is the untrusted one; the other two run our
  // code and the installer.
  const bool base = step == "base";
  const bool import = step == "import" || base;
  const bool network = step == "install";
  const Base& on = (network && !isolated_) || step == "check" ? derived_ : base_;
  Json mounts = Json::parse(mounts_json);
  mounts.push_back(Bind(runtime_dir_, "/opt/hutch", false));
  mounts.push_back(
      {{"type", "tmpfs"},
       {"source", "tmpfs"},
       {"destination", "/tmp"},
       {"options", {"nosuid", "nodev", network ? "size=2g" : "size=256m", "mode=1777"}}});
  // The same as a worker's zygote sets: with one thread each, these libraries start none at import.
  Json env = {{"HOME", "/tmp"},
              {"LANG", "C.UTF-8"},
              {"TMPDIR", "/tmp"},
              {"OMP_NUM_THREADS", "1"},
              {"OPENBLAS_NUM_THREADS", "1"},
              {"MKL_NUM_THREADS", "1"},
              {"NUMEXPR_NUM_THREADS", "1"},
              {"MPLCONFIGDIR", "/tmp"}};
  if (!base) env["PATH"] = on.path;
  Json limits = Json::array({{{"type", "CORE"}, {"hard", 0}, {"soft", 0}}});
  if (import) limits.push_back({{"type", "FSIZE"}, {"hard", kMaxAnswer}, {"soft", kMaxAnswer}});
  Json spec = {
      {"name", "hutch-builder-" + name_ + "-" + step},
      {"image", on.image},
      {"entrypoint", {base ? "python3" : on.python, "-I", "-S"}},
      {"command", command},
      {"work_dir", "/"},
      {"image_volume_mode", "ignore"},  // a writable place that no limit counts
      {"healthconfig", {{"Test", {"NONE"}}}},
      {"env", env},
      {"labels",
       {{"hutch.instance", paths_.instance_label()},
        {"hutch.role", "builder"},
        {"hutch.build", name_}}},
      {"mounts", mounts},
      // Container root without a capability is the host's own unprivileged user: what it writes is
      // ours to remove.
      {"user", import ? "1000:1000" : "0:0"},
      {"cap_drop", {"ALL"}},
      {"no_new_privileges", true},
      {"read_only_filesystem", true},
      {"netns", {{"nsmode", network ? network_ : "none"}}},
      {"pidns", {{"nsmode", "private"}}},
      {"ipcns", {{"nsmode", "private"}}},
      {"utsns", {{"nsmode", "private"}}},
      {"hostname", "builder"},
      {"log_configuration", {{"driver", "none"}}},
      {"r_limits", limits},
      {"stop_timeout", 0},
      {"sdnotifyMode", "ignore"},
      {"volatile", true},
  };
  if (network && network_ == "pasta") spec["network_options"]["pasta"] = kPastaNetwork;
  // The installer and the bytecode compiler need no more than the packages' own code.
  const std::string own =
      runtime_dir_ + (import ? "/seccomp-worker.json" : "/seccomp-builder.json");
  if (::access(own.c_str(), R_OK) == 0) spec["seccomp_profile_path"] = own;
  return spec.dump();
}

std::string Builder::StartStep(const std::string& step, const std::vector<std::string>& command,
                               const std::string& mounts_json) {
  const std::string name = "hutch-builder-" + name_ + "-" + step;
  containers_.push_back(name);  // so that a lost answer leaves nothing behind
  try {
    const std::string id = podman_.Create(ContainerSpec(step, command, mounts_json));
    podman_.Start(id);
    return id;
  } catch (const Error& error) {
    if (step != "install" || error.code() != Code::kPodman) throw;
    // The network helper was a guess.
    const std::string found = podman_.NetworkHelper();
    if (found.empty()) {
      throw Error(Code::kPlatform,
                  "Podman finds neither slirp4netns nor pasta: no dependency can be installed",
                  "`hutch doctor` has the command that installs one");
    }
    if (std::exchange(network_, found) == found) throw;
  }
  podman_.Remove(name);
  return StartStep(step, command, mounts_json);
}

void Builder::RunStep(const std::string& step, const std::vector<std::string>& command,
                      const std::string& mounts_json, const std::string& report, seconds limit,
                      const std::function<bool(const std::string&)>& line) {
  const auto stop_if_cancelled = [this] {
    if (cancelled_())
      throw Error(Code::kCancelled, "the build was cancelled: no caller waits for it");
  };
  stop_if_cancelled();
  const std::string id = StartStep(step, command, mounts_json);

  Fd fd;
  std::string rest;
  uint64_t received = 0;
  bool ended = false;
  // The install step watches the disk, too, but what it runs may have stopped it.
  const Free before = FreeAt(directory_);
  const Free least = {std::max(kReserve, Less(before.bytes, kMaxBytes)),
                      Less(before.files, 4 * kMaxFiles)};
  const auto deadline = Clock::now() + limit;
  auto inspect_at = Clock::now() + kInspect;
  for (;;) {
    if (!fd) fd.reset(::open(report.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    char buffer[65536];
    ssize_t n = 0;
    while (fd && (n = ::read(fd.get(), buffer, sizeof buffer)) > 0) {
      rest.append(buffer, static_cast<size_t>(n));
      received += static_cast<uint64_t>(n);
      if (received > kMaxReport || rest.size() > kMaxAnswer)
        throw Error(Code::kProtocol, "the " + step + " step's report is too long");
    }
    size_t begin = 0;
    for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1) {
      if (line(rest.substr(begin, end - begin))) return;
    }
    rest.erase(0, begin);
    if (ended) return;  // read once more after the end was seen
    stop_if_cancelled();
    if (Clock::now() > deadline) {
      throw Error(Code::kInstallFailed,
                  "the " + step + " step took longer than " + std::to_string(limit.count()) + " s",
                  "ask for fewer packages at once, or for ones that have wheels");
    }
    if (Clock::now() > inspect_at) {
      const Free now = FreeAt(directory_);
      if (now.bytes < least.bytes || now.files < least.files) {
        throw Error(Code::kPlatform,
                    "the disk is full: the " + step + " step takes more than it may",
                    "free some space; `hutch env` lists what Hutch keeps");
      }
      const auto info = podman_.Inspect(id);
      ended = !info || info->state == "exited" || info->state == "stopped";
      inspect_at = Clock::now() + kInspect;
    } else {
      std::this_thread::sleep_for(kPoll);
    }
  }
}

// What the installer is to choose wheels for, where that is not the interpreter that it runs by: a
// version, and a platform by one of uv's names.
std::vector<std::string> Builder::Target(const std::string& platform) const {
  if (isolated_ || !named()) return {};
  const int minor = std::clamp(std::atoi(base_.libc.c_str() + 2), 28, 40);
  const std::string libc = std::to_string(minor < 31 ? 28 : minor);
  return {base_.version, platform.substr(platform.find('_') + 1) + "-manylinux_2_" + libc};
}

std::string Builder::InstallSettings(const EnvironmentSpec& spec) const {
  Json proxies = Json::object();
  if (!spec.index.http_proxy.empty()) proxies["HTTP_PROXY"] = spec.index.http_proxy;
  if (!spec.index.https_proxy.empty()) proxies["HTTPS_PROXY"] = spec.index.https_proxy;
  if (!spec.index.no_proxy.empty()) proxies["NO_PROXY"] = spec.index.no_proxy;
  const Json extra = Words(spec.index.extra_index_urls);
  Json links = Json::array();
  for (const std::string& url : Words(spec.index.find_links)) links.push_back(url);
  for (size_t i = 0; i < spec.links.size(); ++i) links.push_back(LinksAt(i));
  const Json settings = {{"requirements", spec.requirements},
                         {"constraints", spec.constraints},
                         {"lock", spec.lock},
                         {"node_requirements", spec.node_requirements},
                         {"npm_sources", spec.index.npm_sources},
                         {"npm_credentials", spec.index.npm_credentials},
                         {"npm_ca_bundle", spec.index.npm_ca_bundle},
                         {"find_links", links},
                         {"netrc", spec.index.netrc},
                         {"allow_sdists", spec.allow_sdists},
                         {"index_url", spec.index.index_url},
                         {"extra_index_urls", extra},
                         {"target", Target(spec.platform)},
                         {"link_mode", named() ? "copy" : "hardlink"},
                         {"proxies", proxies},
                         {"ca_bundle", spec.index.ca_bundle},
                         {"cache", "/store/cache"},
                         {"max_bytes", kMaxBytes},
                         {"max_files", kMaxFiles}};
  return settings.dump();
}

std::string Builder::LockLeftIn(const std::string& made) const {
  std::optional<std::string> lock = ReadRegularFile(made + "/lock.txt", kMaxLock);
  if (!lock || !IsLock(*lock)) {
    throw Error(Code::kInstallFailed,
                "the installer left no lock.txt of plain text and at most " +
                    std::to_string(kMaxLock >> 20) + " MiB",
                isolated_ ? "a package's build script may have written to it: leave out "
                            "allow_sdists=, or the package"
                          : "");
  }
  return *std::move(lock);
}

void Builder::Fetch(const EnvironmentSpec& spec, BuildResult* result) {
  const std::string inside = isolated_ ? "/store" : "/store/build/" + name_;
  // Build scripts may write here only, and to nothing in the directory above.
  const std::string made = directory_ + (isolated_ ? "/fetched" : "");
  if (isolated_ && ::mkdir(made.c_str(), 0755) != 0) ThrowErrno("create " + made, Code::kPlatform);
  // In a file, not in arguments or the environment: `podman inspect` shows those.
  WriteFile(made + "/install.json", InstallSettings(spec), 0600);
  // One mount for cache and tree: a hard link does not cross mounts.
  Json mounts = Json::array({Bind(isolated_ ? made : paths_.store_dir(), "/store", true)});
  for (size_t i = 0; i < spec.links.size(); ++i)
    mounts.push_back(Bind(ShownPath(paths_, spec.links[i]), LinksAt(i), false));
  const std::string script = std::string(kScripts) + "install.py";

  std::optional<Error> failure;
  bool done = false;
  const auto read = [&](const std::string& line) {
    InstallItem item = ReadInstallItem(line);
    if (item.failure) {
      failure = std::move(item.failure);
      return true;
    }
    if (item.progress) progress_(*std::move(item.progress));
    if (item.end) installed_ = *std::move(item.end);
    return done = item.end.has_value();
  };
  RunStep("install", {script, inside}, mounts.dump(), made + "/report.jsonl", seconds(3600), read);
  // Build scripts of source packages may have left processes, and links for us to follow: first the
  // processes are ended, then the tree is read.
  if (isolated_) {
    for (const std::string& id : containers_) podman_.Remove(id);
  }
  if (failure) throw *failure;
  if (!done)
    throw Error(Code::kInstallFailed, "the dependency installer ended without an answer",
                "`hutch logs` has what it said");
  CheckKind(made + "/tree", S_IFDIR);
  if (isolated_) {
    std::filesystem::rename(made + "/tree", directory_ + "/tree");
    Check(spec);
  }
  result->packages = installed_.packages;
  result->bytes = installed_.bytes;
  result->files = installed_.files;
  result->lock = spec.lock.empty() ? LockLeftIn(made) : spec.lock;
}

void Builder::Check(const EnvironmentSpec& spec) {
  const Json settings = {{"requirements", spec.requirements},
                         {"lock", spec.lock},
                         {"cache", "/store/cache"},
                         {"max_bytes", kMaxBytes},
                         {"max_files", kMaxFiles}};
  WriteFile(directory_ + "/check.json", settings.dump(), 0600);
  const Json mounts = Json::array({Bind(directory_, "/store", true)});
  std::optional<Error> failure;
  bool done = false;
  RunStep("check", {std::string(kScripts) + "install.py", "--check", "/store"}, mounts.dump(),
          directory_ + "/checked.jsonl", seconds(600), [&](const std::string& line) {
            InstallItem item = ReadInstallItem(line);
            if (item.failure) failure = std::move(item.failure);
            if (item.end) installed_ = *std::move(item.end);
            done = item.end.has_value();
            return done || failure.has_value();
          });
  if (failure) throw *failure;
  if (!done)
    throw Error(Code::kInstallFailed, "the installed packages could not be inspected",
                "`hutch logs` has what was said");
}

std::vector<std::string> Builder::Import(BuildResult* result) {
  if (installed_.modules.empty()) return {};
  progress_({"import", "importing " + FirstOf(installed_.modules), 0, 0});
  // Packages' code may write to one file of the host, which we made, and whose size is limited.
  const std::string out = directory_ + "/import.json";
  WriteFile(out, "", 0666);
  const Json mounts =
      Json::array({Bind(directory_ + "/tree", "/opt/env", false), Bind(out, kAnswer, true)});
  std::vector<std::string> command = {std::string(kScripts) + "probe.py", kAnswer,
                                      std::to_string(kImportSeconds)};
  command.insert(command.end(), installed_.modules.begin(), installed_.modules.end());
  std::string text;
  const int modules = static_cast<int>(installed_.modules.size());
  const auto limit = seconds(kImportSeconds) * modules + seconds(30);
  try {
    RunStep("import", command, mounts.dump(), out, limit, [&](const std::string& line) {
      text = line;
      return true;
    });
  } catch (const Error& error) {
    // Packages that do not load are still installed: the caller's own import shows the error. What
    // they report decides nothing here.
    if (error.code() != Code::kInstallFailed && error.code() != Code::kProtocol) throw;
  }
  ProbeAnswer answer = ReadProbeAnswer(text, installed_.modules);
  result->preload = std::move(answer.preload);
  result->notes = std::move(answer.notes);
  return std::move(answer.files);
}

void Builder::Compile(const std::string& step, const char* kind,
                      const std::vector<std::string>& names, const std::string& text) {
  if (names.empty()) return;
  progress_({"compile", "compiling " + text, 0, 0});
  const std::string list = directory_ + "/" + step + ".json";
  const std::string report = directory_ + "/" + step + ".done.json";
  WriteFile(list, Json{{kind, names}}.dump(-1, ' ', false, Json::error_handler_t::replace), 0644);
  // The same mount as the install step's: bytecode is hard-linked into the cache, and no code of
  // packages runs here. A named base's Python is a stranger.
  const std::string inside = isolated_ || named() ? "/store" : "/store/build/" + name_;
  Json mounts = Json::array({Bind(isolated_ ? directory_ : paths_.store_dir(), "/store", true)});
  if (named()) {
    WriteFile(report, "", 0644);
    mounts = {Bind(directory_ + "/tree", "/store/tree", true),
              Bind(list, "/store/" + step + ".json", false),
              Bind(report, "/store/" + step + ".done.json", true)};
  }
  const std::vector<std::string> command = {std::string(kScripts) + "compile.py", inside + "/tree",
                                            inside + "/" + step + ".json",
                                            inside + "/" + step + ".done.json", "/store/cache"};
  RunStep(step, command, mounts.dump(), report, seconds(600),
          [](const std::string&) { return true; });
}

std::string Builder::Look(const std::string& image, const std::string& runtime_id, seconds limit) {
  runtime_dir_ = paths_.runtime_dir(runtime_id);
  base_.image = image;
  const std::string out = directory_ + "/interpreter.json";
  WriteFile(out, "", 0666);
  const Json mounts = Json::array({Bind(out, kAnswer, true)});
  const std::vector<std::string> command = {std::string(kScripts) + "interpreter.py", kAnswer};
  std::string text;
  RunStep("base", command, mounts.dump(), out, limit, [&](const std::string& line) {
    text = line;
    return true;
  });
  return text;
}

BuildResult Builder::Run(const EnvironmentSpec& spec) {
  runtime_dir_ = paths_.runtime_dir(spec.runtime_id);
  isolated_ = spec.allow_sdists;
  if (::access((runtime_dir_ + "/environment/install.py").c_str(), R_OK) != 0) {
    throw Error(Code::kMissingRuntime,
                "the worker files " + spec.runtime_id + " are not installed");
  }
  const auto image = podman_.ImageId(BaseReference(spec.base_id));
  if (!image) throw Error(Code::kMissingBase, "the base image " + spec.base_id + " is not there");
  derived_.image = *image;
  if (base_.image.empty()) base_ = derived_;
  network_ = podman_.UsualNetworkHelper();

  BuildResult result;
  auto start = Clock::now();
  const auto lap = [&start](double* seconds) {
    *seconds += Seconds(start);
    start = Clock::now();
  };
  Fetch(spec, &result);
  lap(&result.install_sec);
  // First the modules that the sources import, on every core, so that the import finds bytecode;
  // then the modules that it found without bytecode.
  Compile("compile", "modules", installed_.uncompiled, FirstOf(installed_.uncompiled));
  lap(&result.compile_sec);
  const std::vector<std::string> files = Import(&result);
  lap(&result.import_sec);
  Compile("compile-rest", "files", files, std::to_string(files.size()) + " modules");
  lap(&result.compile_sec);
  return result;
}

}  // namespace hutch

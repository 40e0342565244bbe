// SPDX-License-Identifier: Apache-2.0

#include "environments/environment.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "podman/files.h"
#include "podman/mounts.h"
#include "wire/clock.h"
#include "wire/error.h"
#include "wire/fd.h"

namespace hutch {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uint64_t kMinFree = 512ull << 20;  // bytes of disk below which no build begins
constexpr std::chrono::milliseconds kTick(20);
constexpr size_t kMaxMeta = 64u << 20;  // bytes of a meta.json; it usually has kilobytes

// Writes the whole file or none of it. Throws kPlatform, for example when the disk is full.
void WriteFile(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  if (!file) ThrowErrno("write " + path.string(), Code::kPlatform);
}

std::string RandomName() {
  unsigned char bytes[8];
  if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes) ThrowErrno("get random bytes");
  constexpr char kHex[] = "0123456789abcdef";
  std::string name;
  for (const unsigned char byte : bytes) {
    name += kHex[byte >> 4];
    name += kHex[byte & 15];
  }
  return name;
}

bool IsDigest(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string BootId() { return ReadRegularFile("/proc/sys/kernel/random/boot_id", 64).value_or(""); }

// meta.json, as far as this version reads it.
struct Meta {
  EnvironmentInfo info;
  std::vector<std::string> preload, notes;
  bool whole = false;  // all of the environment is on the disk
};

// std::nullopt: there is none, or it is not ours.
std::optional<Meta> ReadMeta(const fs::path& directory) {
  const Json json =
      Json::parse(ReadRegularFile(directory / "meta.json", kMaxMeta).value_or(""), nullptr, false);
  if (!json.is_object() || !IsDigest(directory.filename())) return std::nullopt;
  Meta meta;
  try {
    meta.info.digest = json.at("digest");
    meta.info.requirements = json.at("requirements");
    meta.info.packages = json.at("packages");
    meta.info.python_version = json.at("python_version");
    meta.info.base_id = json.at("base_id");
    meta.info.bytes = json.at("bytes");
    meta.info.created_sec = json.at("created_sec");
    meta.info.build_sec = json.at("build_sec");
    meta.preload = json.at("preload");
    meta.notes = json.at("notes");
    std::error_code error;
    const bool durable = json.at("boot") == BootId() || fs::exists(directory / "synced", error);
    meta.whole = durable && meta.info.digest == directory.filename() &&
                 fs::is_directory(directory / "tree", error);
  } catch (const Json::exception&) {  // edited by hand, or another version's
    return std::nullopt;
  }
  struct stat status;
  if (::stat((directory / "meta.json").c_str(), &status) == 0)
    meta.info.last_used_sec = status.st_mtime;
  return meta;
}

void RequireSpace(const std::string& directory) {
  struct statvfs status;
  if (::statvfs(directory.c_str(), &status) != 0)
    ThrowErrno("find how much space is free in " + directory, Code::kPlatform);
  const uint64_t free = static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
  if (free >= kMinFree) return;
  throw Error(Code::kPlatform,
              "the disk is full: " + std::to_string(free >> 20) +
                  " MB are free where environments are kept (" + directory + "), a build needs " +
                  std::to_string(kMinFree >> 20),
              "free some space; `hutch env` lists what Hutch keeps");
}

}  // namespace

// One build under way. What is not guarded is set before its thread begins.
struct EnvironmentStore::Build {
  EnvironmentSpec spec;
  BaseImage base;
  std::string digest;
  std::string name;  // of its directory and containers
  std::thread thread;
  std::atomic<bool> given_up = false;
  std::atomic<bool> ended = false;  // its thread has nothing more to do

  Mutex mutex;
  CondVar changed;
  std::vector<BuildProgress> progress GUARDED_BY(mutex);
  int waiting GUARDED_BY(mutex) = 0;
  bool done GUARDED_BY(mutex) = false;
  std::optional<Error> failure GUARDED_BY(mutex);  // with done
  double seconds GUARDED_BY(mutex) = 0;
};

EnvironmentStore::EnvironmentStore(Podman& podman, const Paths& paths)
    : podman_(podman), paths_(paths), bases_(podman, paths) {
  for (const std::string& directory :
       {paths.store_dir() + "/cache", paths.store_dir() + "/build", paths.environment_dir()}) {
    std::error_code error;
    fs::create_directories(directory, error);
    if (error) throw Error(Code::kPlatform, "cannot create " + directory + ": " + error.message());
  }
  fs::permissions(paths.environment_dir(), kFindable);
}

EnvironmentStore::~EnvironmentStore() {
  {
    const MutexLock lock(mutex_);
    for (const auto& build : threads_) build->given_up = true;
  }
  Join(true);
}

// Joins threads that have ended, or all of them. Never called by a build's own thread.
void EnvironmentStore::Join(bool all) {
  std::vector<std::shared_ptr<Build>> joinable;
  {
    const MutexLock lock(mutex_);
    const auto end =
        std::stable_partition(threads_.begin(), threads_.end(),
                              [all](const auto& build) { return !all && !build->ended; });
    joinable.assign(end, threads_.end());
    threads_.erase(end, threads_.end());
  }
  for (const auto& build : joinable) build->thread.join();
}

std::string EnvironmentStore::Digest(const EnvironmentSpec& spec) const {
  CheckSpec(spec);
  return DigestOf(spec);
}

std::optional<Environment> EnvironmentStore::Load(const EnvironmentSpec& spec,
                                                  const std::string& digest) const {
  const fs::path directory = fs::path(paths_.environment_dir()) / digest;
  std::optional<Meta> meta = ReadMeta(directory);
  std::optional<std::string> lock = ReadRegularFile(directory / "lock.txt", kMaxLock);
  if (!meta || !meta->whole || !lock) return std::nullopt;

  Environment environment;
  environment.digest = digest;
  environment.tree_dir = directory / "tree";
  environment.lock = *std::move(lock);
  // What was asked for is given as it is; the zygote says which of it does not load.
  if (spec.preload_given) {
    environment.preload = spec.preload;
  } else {
    environment.preload = std::move(meta->preload);
    environment.notes = std::move(meta->notes);
  }
  ::utimensat(AT_FDCWD, (directory / "meta.json").c_str(), nullptr, 0);  // last used
  return environment;
}

Environment EnvironmentStore::Get(const EnvironmentSpec& spec, Clock::time_point deadline,
                                  const ProgressFn& progress, const Cancelled& cancelled) {
  if (spec.base.empty()) return GetOn({}, spec, deadline, progress, cancelled);
  CheckSpec(spec);
  BaseImage base = bases_.Get(spec, deadline, progress, cancelled);
  if (!base.no_installer.empty() && spec.allow_sdists) {
    throw Error(Code::kInvalidArgument,
                "nothing can be built from source on the base " + spec.base +
                    ": the installer does not run there: " + base.no_installer,
                "leave out allow_sdists=, or name an image with libgcc_s, such as Debian's");
  }
  EnvironmentSpec known = spec;
  known.base_image = base.id;
  known.python_version = base.version;
  Environment environment = GetOn(base, known, deadline, progress, cancelled);
  environment.base = std::move(base);
  return environment;
}

Environment EnvironmentStore::GetOn(const BaseImage& base, const EnvironmentSpec& spec,
                                    Clock::time_point deadline, const ProgressFn& progress,
                                    const Cancelled& cancelled) {
  const std::string digest = Digest(spec);
  if (!spec.venv.empty()) {  // it is there, and the caller's
    Environment environment;
    environment.digest = digest;
    environment.tree_dir = ShownPath(paths_, spec.venv.front());
    environment.preload = spec.preload;
    return environment;
  }
  Join(false);
  std::shared_ptr<Build> build;
  {
    const MutexLock lock(mutex_);
    const auto found = builds_.find(digest);
    if (found != builds_.end() && !found->second->given_up) {
      build = found->second;
    } else {
      if (auto environment = Load(spec, digest)) return *environment;
      build = std::make_shared<Build>();
      build->spec = spec;
      build->base = base;
      build->digest = digest;
      build->name = RandomName();
      builds_[digest] = build;
      threads_.push_back(build);
      build->thread = std::thread([this, build] { RunBuild(build); });
    }
    // Under the store's lock, so that nobody cancels it between finding and joining it.
    const MutexLock build_lock(build->mutex);
    ++build->waiting;
  }

  std::optional<Error> failure;
  double seconds = 0;
  size_t shown = 0;
  bool done = false;
  while (!done && !failure) {
    std::vector<BuildProgress> news;
    {
      const MutexLock lock(build->mutex);
      for (const auto tick = Clock::now() + kTick;
           !build->done && build->progress.size() <= shown && Clock::now() < tick;) {
        build->changed.WaitUntil(build->mutex, tick);
      }
      news.assign(build->progress.begin() + static_cast<std::ptrdiff_t>(shown),
                  build->progress.end());
      shown = build->progress.size();
      done = build->done;
    }
    if (progress) std::for_each(news.begin(), news.end(), progress);
    if (done) break;
    if (cancelled && cancelled()) failure.emplace(Code::kCancelled, "the build was cancelled");
    if (Clock::now() >= deadline) {
      failure.emplace(Code::kTimeout, "the environment was not built in time",
                      "give it longer, or build it ahead; what was downloaded is kept");
    }
  }
  {
    const MutexLock lock(mutex_);
    const MutexLock build_lock(build->mutex);
    if (--build->waiting == 0 && !build->done) build->given_up = true;
    if (!failure) failure = build->failure;
    seconds = build->seconds;
  }
  if (failure) throw *failure;
  auto environment = Load(spec, digest);
  if (!environment)
    throw Error(Code::kInternal, "the environment " + digest + " was built, but cannot be found");
  environment->built_now = true;
  environment->build_sec = seconds;
  return *environment;
}

void EnvironmentStore::RunBuild(const std::shared_ptr<Build>& build) {
  const auto start = Clock::now();
  const fs::path directory = fs::path(paths_.store_dir()) / "build" / build->name;
  const auto say = [&build](BuildProgress progress) {
    const MutexLock lock(build->mutex);
    // A caller sees each stage; of one stage's numbers only the newest matter, so the list stays
    // short.
    if (build->progress.size() < 10'000) build->progress.push_back(std::move(progress));
    build->changed.NotifyAll();
  };
  std::optional<Error> failure;
  Builder builder(podman_, paths_, build->name, say, [&build] { return build->given_up.load(); });
  try {
    fs::create_directory(directory);
    ::chmod(directory.c_str(), 0755);
    BuildResult result;
    if (build->spec.requirements.empty() && build->spec.node_requirements.empty() &&
        build->spec.lock.empty()) {
      fs::create_directory(directory / "tree");
    } else {
      RequireSpace(paths_.store_dir());
      const BaseImage& base = build->base;
      if (!base.id.empty())
        builder.UseBase({base.id, base.python, base.path, base.version, base.libc});
      result = builder.Run(build->spec);
    }
    Publish(*build, result, std::chrono::duration<double>(Clock::now() - start).count());
  } catch (const Error& error) {
    failure = error;
  } catch (const std::exception& error) {  // the file system library's: disk full, permissions
    failure.emplace(Code::kPlatform, std::string("building the environment: ") + error.what());
  }

  {
    const MutexLock lock(mutex_);
    const auto found = builds_.find(build->digest);
    if (found != builds_.end() && found->second == build) builds_.erase(found);
    const MutexLock build_lock(build->mutex);
    build->failure = failure;
    build->seconds = std::chrono::duration<double>(Clock::now() - start).count();
    build->done = true;
    build->changed.NotifyAll();
  }

  // Nobody waits for what follows.
  builder.RemoveContainers();
  RemoveTree(directory);
  if (!failure) {
    const std::string published = paths_.environment_dir() + "/" + build->digest;
    const Fd fd(::open(published.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd && ::syncfs(fd.get()) == 0) std::ofstream(published + "/synced");
  }
  build->ended = true;
}

void EnvironmentStore::Publish(const Build& build, const BuildResult& result, double seconds) {
  const fs::path directory = fs::path(paths_.store_dir()) / "build" / build.name;
  const fs::path finished = directory / "finished";
  if (::mkdir(finished.c_str(), 0755) != 0)
    ThrowErrno("create " + finished.string(), Code::kPlatform);
  fs::rename(directory / "tree", finished / "tree");
  WriteFile(finished / "lock.txt", result.lock);
  std::vector<std::string> asked = build.spec.requirements;
  asked.insert(asked.end(), build.spec.node_requirements.begin(),
               build.spec.node_requirements.end());
  const Json meta = {
      {"digest", build.digest},
      {"requirements", asked},
      {"packages", result.packages},
      {"python_version", build.spec.python_version},
      {"platform", build.spec.platform},
      {"base_id", BaseOf(build.spec)},
      {"preload", result.preload},
      {"notes", result.notes},
      {"bytes", result.bytes},
      {"files", result.files},
      {"created_sec", static_cast<int64_t>(::time(nullptr))},
      {"build_sec", seconds},
      {"stages_sec",
       {{"install", result.install_sec},
        {"import", result.import_sec},
        {"compile", result.compile_sec}}},
      {"boot", BootId()},
  };
  WriteFile(finished / "meta.json",
            meta.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");

  const fs::path target = fs::path(paths_.environment_dir()) / build.digest;
  if (::rename(finished.c_str(), target.c_str()) == 0) return;
  if (errno != EEXIST && errno != ENOTEMPTY)
    ThrowErrno("publish " + target.string(), Code::kPlatform);
  // Only an environment that Load() rejected can be there.
  fs::rename(target, directory / "old");
  fs::rename(finished, target);
}

std::vector<EnvironmentInfo> EnvironmentStore::List() const {
  std::vector<EnvironmentInfo> list;
  for (const auto& entry : fs::directory_iterator(paths_.environment_dir())) {
    std::optional<Meta> meta = ReadMeta(entry.path());
    if (meta) list.push_back(std::move(meta->info));
  }
  std::sort(list.begin(), list.end(),
            [](const auto& a, const auto& b) { return a.created_sec > b.created_sec; });
  return list;
}

bool EnvironmentStore::Remove(const std::string& digest) {
  if (!IsDigest(digest))
    throw Error(Code::kInvalidArgument,
                "this is not the digest of an environment: \"" + digest.substr(0, 100) + "\"",
                "`hutch env` lists them");
  // Renamed first, so that an interrupted removal leaves nothing that looks complete.
  const std::string name = RandomName();
  const std::string trash = paths_.store_dir() + "/build/" + name;
  if (::rename((paths_.environment_dir() + "/" + digest).c_str(), trash.c_str()) != 0) {
    if (errno == ENOENT) return false;
    ThrowErrno("remove environment " + digest, Code::kPlatform);
  }
  RemoveTree(trash);
  return true;
}

void EnvironmentStore::Sweep() {
  // Everything is listed before the builds under way are: what a new build makes is never taken for
  // a leftover.
  const std::vector<ContainerInfo> containers = podman_.List("hutch.role=builder");
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(paths_.store_dir() + "/build"))
    leftovers.push_back(entry.path());
  std::set<std::string> active;
  {
    const MutexLock lock(mutex_);
    for (const auto& build : threads_) active.insert(build->name);
  }
  for (const ContainerInfo& container : containers) {
    const auto label = [&container](const char* key) {
      const auto found = container.labels.find(key);
      return found == container.labels.end() ? std::string() : found->second;
    };
    const std::string build = label("hutch.build");
    if (label("hutch.instance") != paths_.instance_label() || active.contains(build) ||
        bases_.IsLooking(build))
      continue;
    podman_.Remove(container.id);
  }
  std::erase_if(leftovers, [&](const fs::path& path) {
    return active.contains(path.filename()) || bases_.IsLooking(path.filename());
  });
  for (const auto& entry : fs::directory_iterator(paths_.environment_dir())) {
    const std::optional<Meta> meta = ReadMeta(entry.path());
    if (!meta || !meta->whole) leftovers.push_back(entry.path());
  }
  for (const fs::path& path : leftovers) RemoveTree(path);
}

}  // namespace hutch

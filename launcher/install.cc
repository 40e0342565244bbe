// SPDX-License-Identifier: Apache-2.0

#include "launcher/install.h"

#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <vector>

#include "launcher/podman_service.h"
#include "launcher/subprocess.h"
#include "podman/podman.h"
#include "wire/error.h"
#include "wire/fd.h"
#include "wire/log.h"

namespace hutch {
namespace {

namespace fs = std::filesystem;
constexpr off_t kMaxFile = 512 << 20;

struct Source {
  std::string from;  // read as the caller: it may lie in a home that the service user cannot see
  std::string to;    // below the runtime's directory
};

// The shared libraries of this program, which is also the installed one. The C library and its
// companions are left out: they have to match the base image's loader.
std::vector<Source> Libraries() {
  std::vector<Source> found;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        const std::string path = info->dlpi_name;
        if (path.empty() || path[0] != '/') return 0;  // the program itself, the vdso
        const std::string name = path.substr(path.rfind('/') + 1);
        for (const char* own : {"libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so",
                                "libresolv.so", "libutil.so", "ld-linux", "ld64", "libnss_"}) {
          if (name.starts_with(own)) return 0;
        }
        static_cast<std::vector<Source>*>(out)->push_back({path, "lib/" + name});
        return 0;
      },
      &found);
  return found;
}

void AddTree(const std::string& from, const std::string& to, std::vector<Source>* sources) {
  if (!fs::is_directory(from))
    throw Error(Code::kInvalidArgument, "the directory " + from + " does not exist",
                "install hutch again: it is a part of it");
  for (auto entry =
           fs::recursive_directory_iterator(from, fs::directory_options::follow_directory_symlink);
       entry != fs::recursive_directory_iterator(); ++entry) {
    if (entry->path().filename() == "__pycache__") {
      entry.disable_recursion_pending();
      continue;
    }
    if (!entry->is_regular_file()) continue;
    const std::string relative = fs::relative(entry->path(), from).string();
    sources->push_back({entry->path().string(), to.empty() ? relative : to + "/" + relative});
  }
}

// Copies one file: opened as the caller, written as Podman's user.
void Copy(const Paths& paths, const std::string& from, const std::string& to) {
  const Fd in(::open(from.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat st{};
  if (!in || ::fstat(in.get(), &st) != 0) ThrowErrno("open " + from, Code::kPlatform);
  if (!S_ISREG(st.st_mode) || st.st_size > kMaxFile)
    throw Error(Code::kPlatform, from + " is not a regular file of a usual size");
  const AsUser user(paths);
  fs::create_directories(fs::path(to).parent_path());
  const Fd out(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!out) ThrowErrno("create " + to, Code::kPlatform);
  std::vector<char> buffer(1 << 18);
  for (;;) {
    const ssize_t n = ::read(in.get(), buffer.data(), buffer.size());
    if (n < 0) ThrowErrno("read " + from, Code::kPlatform);
    if (n == 0) break;
    for (ssize_t done = 0; done < n;) {
      const ssize_t written =
          ::write(out.get(), buffer.data() + done, static_cast<size_t>(n - done));
      if (written < 0) ThrowErrno("write " + to, Code::kPlatform);
      done += written;
    }
  }
  if (::fchmod(out.get(), (st.st_mode & 0111) != 0 ? 0755 : 0644) != 0)
    ThrowErrno("set the mode of " + to);
}

// Before anything is written: what a full disk has of it would be in the way of those who make
// room.
void RequireSpace(const Paths& paths, const std::vector<Source>& sources) {
  uint64_t needed = 1 << 20;  // for the directories, and what each file is rounded up by
  for (const Source& source : sources) {
    std::error_code ignored;
    const uintmax_t size = fs::file_size(source.from, ignored);
    if (!ignored) needed += size + 4096;
  }
  const AsUser user(paths);
  struct statvfs status{};
  if (::statvfs(paths.state_dir.c_str(), &status) != 0) return;
  const uint64_t free = static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
  if (free >= needed) return;
  throw Error(Code::kPlatform,
              "the disk is full: " + std::to_string(free >> 20) + " MB are free in " +
                  paths.state_dir + ", and Hutch's programs take " + std::to_string(needed >> 20),
              "free some space there, or set HUTCH_HOME to a directory on a larger disk");
}

// Bytecode of the worker files, for the interpreter that will run them: made in a directory of the
// caller's (only the caller may be able to run that interpreter), and copied from there.
class Bytecode {
 public:
  Bytecode(const Paths& paths, const LaunchOptions& options) {
    std::string name = (fs::temp_directory_path() / "hutch-bytecode-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) return;
    directory_ = name;
    Command compile;
    compile.argv = {options.python,
                    "-I",
                    "-S",
                    options.package + "/base/bytecode.py",
                    directory_,
                    "/opt/hutch/worker=" + options.package + "/worker",
                    "/opt/hutch/cloudpickle=" + options.cloudpickle};
    compile.environment = {"LANG=C.UTF-8"};
    compile.drop = false;
    Run(paths, compile);  // where it fails there is no bytecode, and starts are slower
  }
  ~Bytecode() {
    std::error_code ignored;
    if (!directory_.empty()) fs::remove_all(directory_, ignored);
  }
  Bytecode(const Bytecode&) = delete;
  Bytecode& operator=(const Bytecode&) = delete;

  void AddTo(std::vector<Source>* sources) const {
    const std::string made = directory_ + "/opt/hutch";
    if (directory_.empty() || !fs::is_directory(made)) return;
    for (const auto& entry : fs::recursive_directory_iterator(made)) {
      if (!entry.is_regular_file()) continue;
      sources->push_back({entry.path().string(), fs::relative(entry.path(), made).string()});
    }
  }

 private:
  std::string directory_;
};

}  // namespace

void InstallRuntime(const Paths& paths, const LaunchOptions& options) {
  const std::string target = paths.runtime_dir(options.runtime_id);
  const std::string part = target + ".part-" + std::to_string(::getpid());
  {
    const AsUser user(paths);
    // Its time says when it was last used: `hutch prune` removes it by that.
    const int noted = ::utimensat(AT_FDCWD, target.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
    if (noted == 0 || ::access(target.c_str(), F_OK) == 0) return;
  }
  LogInfo("installing the runtime");
  std::vector<Source> sources = Libraries();
  AddTree(options.package, "", &sources);
  if (!options.cloudpickle.empty()) AddTree(options.cloudpickle, "cloudpickle", &sources);
  if (!options.uv.empty()) sources.push_back({options.uv, "uv"});
  const Bytecode bytecode(paths, options);
  bytecode.AddTo(&sources);
  RequireSpace(paths, sources);
  const mode_t mask = ::umask(0022);
  try {
    for (const Source& source : sources) Copy(paths, source.from, part + "/" + source.to);
    const AsUser user(paths);
    if (::rename(part.c_str(), target.c_str()) != 0) ThrowErrno("rename " + part, Code::kPlatform);
  } catch (...) {
    ::umask(mask);
    const AsUser user(paths);
    std::error_code ignored;
    fs::remove_all(part, ignored);
    throw;
  }
  ::umask(mask);
}

void InstallBase(const Paths& paths, const LaunchOptions& options) {
  Podman podman(paths.podman_socket());
  const std::string reference = BaseReference(options.base_id);
  {
    const AsUser user(paths);
    if (podman.ImageId(reference)) return;
  }
  LogInfo("making the base image (once; about 5 s)", {{"python", options.python}});
  const auto begin = std::chrono::steady_clock::now();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) ThrowErrno("make a pipe");
  const Fd reads(ends[0]);
  Fd writes(ends[1]);
  Command derive;
  derive.argv = {options.python, "-I", "-S", options.package + "/base/derive.py"};
  derive.environment = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                        "LANG=C.UTF-8", "HOME=/nonexistent"};
  derive.out = writes.get();
  derive.err = 2;
  derive.drop = false;  // the caller's own interpreter, which only the caller may be able to read
  pid_t pid = Spawn(paths, derive);
  writes.reset();
  const auto read = [&reads, &pid](char* buffer, size_t size) -> size_t {
    ssize_t n = 0;
    do {
      n = ::read(reads.get(), buffer, size);
    } while (n < 0 && errno == EINTR);
    if (n > 0) return static_cast<size_t>(n);
    // The end: an image is made of a complete archive only.
    const int status = Reap(pid);
    pid = -1;
    if (n < 0 || status != 0) {
      throw Error(
          Code::kPlatform,
          "the base image could not be made: derive.py ended with " + std::to_string(status),
          "what it printed before says why");
    }
    return 0;
  };
  try {
    const AsUser user(paths);
    podman.ImportImage(
        reference, read,
        {"ENV PATH=/opt/python/bin:/usr/bin:/bin", "ENV LANG=C.UTF-8",
         "CMD [\"/opt/python/bin/python3\"]", "LABEL hutch.base=" + options.base_id});
  } catch (const Error& error) {
    if (pid > 0) {
      ::kill(pid, SIGKILL);
      Reap(pid);
    }
    if (error.code() != Code::kPodman) throw;
    throw Refused("the base image could not be made: " + std::string(error.what()));
  }
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - begin);
  LogInfo("the base image is made", {{"ms", took.count()}});
}

}  // namespace hutch

// SPDX-License-Identifier: Apache-2.0

// The warden's zygote: starting it, and starting it again without a module that it could not
// import.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "images/warden/clock.h"
#include "images/warden/measure.h"
#include "images/warden/warden.h"
#include "images/worker/wall_switch.h"

namespace hutch {
namespace {

constexpr int kMaxStarts = 64;
constexpr int64_t kMaxImportSec = 3600;
constexpr int64_t kStartUs = 60'000'000;  // for what is not an import

[[noreturn]] void Execute(const Settings& settings, const Environments& environments, int control,
                          int error_output) {
  if (error_output >= 0) dup2(error_output, STDERR_FILENO);
  if (environments.held()) {
    if (const char* failed = environments.Leave()) {
      fprintf(stderr, "hutch-warden: %s: %s\n", failed, strerror(errno));
      _exit(127);
    }
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (control != kZygoteFd) {
    dup2(control, kZygoteFd);
  } else {
    fcntl(control, F_SETFD, 0);
  }
  syscall(SYS_close_range, kZygoteFd + 1, kLastFd, 0);
  char path[] = "PATH=/opt/env/bin:/opt/python/bin:/usr/local/bin:/usr/bin:/bin";
  char language[] = "LANG=C.UTF-8";
  char home[] = "HOME=/work";
  char bytecode[] = "PYTHONDONTWRITEBYTECODE=1";
  char* environment[] = {path, language, home, bytecode, nullptr};
  const char* arguments[] = {"python3", "-I", "-S", "-B", "-X", "utf8=1", settings.zygote, nullptr};
  execve(settings.python, const_cast<char**>(arguments),
         WallIsDown("environment") ? environ : environment);
  fprintf(stderr, "hutch-warden: %s: %s\n", settings.python, strerror(errno));
  _exit(127);
}

}  // namespace

void Warden::StartZygote() {
  int pair[2];
  if (++zygote_starts_ > kMaxStarts ||
      socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    Fatal("the zygote could not be started");
  }
  const pid_t pid = fork();
  if (pid == 0) Execute(settings_, environments_, pair[1], zygote_stderr_.write_end());
  close(pair[1]);
  if (pid < 0) Fatal("the zygote could not be started");
  if (zygote_control_ >= 0) close(zygote_control_);
  zygote_control_ = pair[0];
  zygote_ = pid;
  zygote_again_ = false;
  zygote_stderr_.Clear();
  importing_[0] = '\0';
  import_deadline_us_ = 0;
  WatchZygote();
  if (configured_) ConfigureZygote();
}

// It has loaded what is ours meanwhile, or is about to; what the configuration names comes after.
void Warden::ConfigureZygote() {
  static char config[sizeof config_ + sizeof skip_ + 16];
  memcpy(config, config_, config_size_);
  const int size =
      snprintf(config + config_size_, sizeof config - config_size_, "HUTCH_SKIP=%s", skip_);
  FrameHeader header;
  header.kind = kConfig;
  Send(zygote_control_, header, config, config_size_ + static_cast<size_t>(size) + 1);
  import_deadline_us_ = NowUs() + kStartUs;
}

void Warden::OnZygote() {
  Datagram message;
  while (zygote_control_ >= 0) {
    const Receiving got = Receive(zygote_control_, &message);
    if (got == Receiving::kNothing) return;
    if (got == Receiving::kMalformed) Fatal("the zygote sent no frame");
    if (got == Receiving::kGone) {
      close(zygote_control_);
      zygote_control_ = -1;
      // Of no use without it, but where it is about to be a cell, and has closed it itself.
      if (zygote_ > 0 && !(single_cell_ && zygote_ready_)) kill(zygote_, SIGKILL);
      return;
    }
    message.CloseDescriptors();
    const FrameHeader& header = message.header;
    if (header.kind == FrameKind::kFailed) {  // of a slot that it could not fork
      if (header.a < kMaxSlots && slots_[header.a].state == SlotState::kStarting) {
        FailSlot(static_cast<int>(header.a), static_cast<int>(header.b), message.payload,
                 message.size);
      }
    } else if (zygote_ready_) {  // NOLINT(bugprone-branch-clone): it has nothing more to say
      Fatal("the zygote spoke out of turn");
    } else if (header.kind == kImporting) {
      const size_t size = std::min(message.size, sizeof importing_ - 1);
      memcpy(importing_, message.payload, size);
      importing_[size] = '\0';
      const int64_t us =
          size == 0 ? kStartUs
                    : static_cast<int64_t>(std::min<uint64_t>(header.b, kMaxImportSec)) * 1'000'000;
      import_deadline_us_ = NowUs() + us;
    } else if (header.kind == kSkip) {
      Skip(message.payload, message.size);
    } else if (header.kind == FrameKind::kZygoteReady) {
      zygote_ready_ = true;
      import_deadline_us_ = 0;
      // What the caller's setup function printed is of no use any more.
      zygote_stderr_.Read();
      zygote_stderr_.Clear();
      zygote_kb_ = ResidentKb(proc_, zygote_);
      notes_size_ = std::min(message.size, sizeof notes_);
      memcpy(notes_, message.payload, notes_size_);
      FrameHeader ready = header;
      ready.a = 0;
      Report(ready, notes_, notes_size_);
    } else {
      Fatal("the zygote spoke out of turn");
    }
  }
}

void Warden::Skip(const char* line, size_t size) {
  zygote_again_ = true;
  if (skip_size_ + size + 2 > sizeof skip_) return;
  for (size_t i = 0; i < size; ++i)
    skip_[skip_size_++] = line[i] == '\0' || line[i] == '\n' ? ' ' : line[i];
  skip_[skip_size_++] = '\n';
  skip_[skip_size_] = '\0';
}

// The zygote hangs, or died, in the middle of an import.
void Warden::SkipImported(const char* reason) {
  import_deadline_us_ = 0;
  if (importing_[0] != '\0') {
    char line[256];
    const int size = snprintf(line, sizeof line, "%s\t%s", importing_, reason);
    Skip(line, std::min<size_t>(static_cast<size_t>(size), sizeof line - 1));
  }
  if (zygote_ > 0) kill(zygote_, SIGKILL);
}

// What the zygote wrote last, for the agent's log. Nothing of one that ended as it announced, and
// said nothing.
void Warden::SendLastWords(int status) {
  zygote_stderr_.Read();
  if (status == 0 && zygote_stderr_.size() == 0) return;
  FrameHeader words;
  words.kind = FrameKind::kZygoteStderr;
  words.a = static_cast<uint32_t>(status);
  Report(words, zygote_stderr_.text(), zygote_stderr_.size());
  zygote_stderr_.Clear();
}

void Warden::OnZygoteDeath(int status) {
  zygote_ = 0;
  SendLastWords(status);
  if (!zygote_ready_ && !zygote_again_ && importing_[0] != '\0') {
    char reason[64];
    if (WIFSIGNALED(status)) {
      snprintf(reason, sizeof reason, "died while being imported (signal %d)", WTERMSIG(status));
    } else {
      snprintf(reason, sizeof reason, "ended the process while being imported (exit %d)",
               WEXITSTATUS(status));
    }
    SkipImported(reason);
  }
  if (!zygote_ready_ && zygote_again_) {
    kill(-1, SIGKILL);  // whatever the last one left running
    return StartZygote();
  }
  FrameHeader died;
  died.kind = FrameKind::kZygoteDied;
  died.a = static_cast<uint32_t>(status);
  static constexpr char kText[] = "the zygote died";
  Report(died, kText, sizeof kText - 1);
  ending_ = true;  // its cells are killed and reported first
  ending_us_ = NowUs();
  for (Slot& slot : slots_) {
    if (slot.cell.state != CellState::kNone) Kill(&slot.cell, kLost);
  }
}

}  // namespace hutch

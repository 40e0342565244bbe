// SPDX-License-Identifier: Apache-2.0

#include "images/warden/zygote.h"

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

void SkipList::Add(const char* line, size_t size) {
  if (size_ + size + 2 > sizeof text_) return;
  for (size_t i = 0; i < size; ++i)
    text_[size_++] = line[i] == '\0' || line[i] == '\n' ? ' ' : line[i];
  text_[size_++] = '\n';
  text_[size_] = '\0';
}

void Zygote::OpenStderr() {
  stderr_.Open();
  if (stderr_.read_end() >= 0) events_.Watch(stderr_.read_end(), Events::kStderr);
}

void Zygote::Start() {
  int pair[2];
  if (++starts_ > kMaxStarts || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    Fatal("the zygote could not be started");
  const pid_t pid = fork();
  if (pid == 0) Execute(settings_, environments_, pair[1], stderr_.write_end());
  close(pair[1]);
  if (pid < 0) Fatal("the zygote could not be started");
  if (control_ >= 0) close(control_);
  control_ = pair[0];
  pid_ = pid;
  again_ = false;
  stderr_.Clear();
  importing_[0] = '\0';
  import_deadline_us_ = 0;
  events_.Watch(control_, Events::kZygote);
  if (configuration_.taken()) Configure();
}

// It has loaded what is ours meanwhile, or is about to; what the configuration names comes after.
void Zygote::Configure() {
  static char config[kMaxConfig + sizeof(SkipList) + 16];
  const size_t given = configuration_.size();
  memcpy(config, configuration_.text(), given);
  const int size = snprintf(config + given, sizeof config - given, "HUTCH_SKIP=%s", skip_.text());
  FrameHeader header;
  header.kind = kConfig;
  Send(control_, header, config, given + static_cast<size_t>(size) + 1);
  import_deadline_us_ = NowUs() + kStartUs;
}

bool Zygote::Next(Datagram* message) {
  while (control_ >= 0) {
    const Receiving got = Receive(control_, message);
    if (got == Receiving::kNothing) return false;
    if (got == Receiving::kMalformed) Fatal("the zygote sent no frame");
    if (got == Receiving::kGone) {
      close(control_);
      control_ = -1;
      // Of no use without it, but where it is about to be a cell, and has closed it itself.
      if (pid_ > 0 && !(configuration_.single_cell() && ready_)) kill(pid_, SIGKILL);
      return false;
    }
    message->CloseDescriptors();
    if (message->header.kind == FrameKind::kFailed) return true;
    OnMessage(*message);
  }
  return false;
}

void Zygote::OnMessage(const Datagram& message) {
  const FrameHeader& header = message.header;
  if (ready_) Fatal("the zygote spoke out of turn");  // it has nothing more to say
  if (header.kind == kImporting) {
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
    OnReady(message);
  } else {
    Fatal("the zygote spoke out of turn");
  }
}

void Zygote::OnReady(const Datagram& message) {
  ready_ = true;
  import_deadline_us_ = 0;
  // What the caller's setup function printed is of no use any more.
  stderr_.Read();
  stderr_.Clear();
  const int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  kb_ = ResidentKb(proc, pid_);
  if (proc >= 0) close(proc);
  notes_size_ = std::min(message.size, sizeof notes_);
  memcpy(notes_, message.payload, notes_size_);
  FrameHeader ready = message.header;
  ready.a = 0;
  agent_.Report(ready, notes_, notes_size_);
}

void Zygote::ReportReady() {
  FrameHeader header;
  header.kind = FrameKind::kZygoteReady;
  agent_.Report(header, notes_, notes_size_);
}

void Zygote::CheckImport(int64_t now, int64_t held_up_us) {
  if (import_deadline_us_ == 0) return;
  import_deadline_us_ += held_up_us;
  if (now > import_deadline_us_) SkipImported("took too long to import");
}

void Zygote::Skip(const char* line, size_t size) {
  again_ = true;
  skip_.Add(line, size);
}

// It hangs, or died, in the middle of an import.
void Zygote::SkipImported(const char* reason) {
  import_deadline_us_ = 0;
  if (importing_[0] != '\0') {
    char line[256];
    const int size = snprintf(line, sizeof line, "%s\t%s", importing_, reason);
    Skip(line, std::min<size_t>(static_cast<size_t>(size), sizeof line - 1));
  }
  if (pid_ > 0) kill(pid_, SIGKILL);
}

// What it wrote last, for the agent's log. Nothing of one that ended as it announced, and said
// nothing.
void Zygote::SendLastWords(int status) {
  stderr_.Read();
  if (status == 0 && stderr_.size() == 0) return;
  FrameHeader words;
  words.kind = FrameKind::kZygoteStderr;
  words.a = static_cast<uint32_t>(status);
  agent_.Report(words, stderr_.text(), stderr_.size());
  stderr_.Clear();
}

void Zygote::Fatal(const char* text) {
  SendLastWords(0);
  FrameHeader header;
  header.kind = FrameKind::kZygoteDied;
  header.a = 0;
  agent_.Report(header, text, strlen(text));
  _exit(4);
}

bool Zygote::OnDeath(int status) {
  pid_ = 0;
  SendLastWords(status);
  if (!ready_ && !again_ && importing_[0] != '\0') {
    char reason[64];
    if (WIFSIGNALED(status)) {
      snprintf(reason, sizeof reason, "died while being imported (signal %d)", WTERMSIG(status));
    } else {
      snprintf(reason, sizeof reason, "ended the process while being imported (exit %d)",
               WEXITSTATUS(status));
    }
    SkipImported(reason);
  }
  if (!ready_ && again_) {
    kill(-1, SIGKILL);  // whatever the last one left running
    Start();
    return true;
  }
  FrameHeader died;
  died.kind = FrameKind::kZygoteDied;
  died.a = static_cast<uint32_t>(status);
  static constexpr char kText[] = "the zygote died";
  agent_.Report(died, kText, sizeof kText - 1);
  return false;
}

}  // namespace hutch

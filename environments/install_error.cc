// SPDX-License-Identifier: Apache-2.0

#include "environments/install_error.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace hutch {
namespace {

constexpr size_t kMaxSentence = 1500;

bool Has(std::string_view text, std::string_view word) {
  return text.find(word) != std::string_view::npos;
}

// The installer draws its message as a tree, or names each line by its part.
std::string_view Undecorated(std::string_view line) {
  static constexpr std::array<std::string_view, 12> kMarks = {" ",
                                                              "\t",
                                                              "\xc3\x97" /* × */,
                                                              "\xe2\x95\xb0" /* ╰ */,
                                                              "\xe2\x94\x80" /* ─ */,
                                                              "\xe2\x96\xb6" /* ▶ */,
                                                              "\xe2\x94\x82" /* │ */,
                                                              "\xe2\x94\x9c" /* ├ */,
                                                              "\xe2\x95\xad" /* ╭ */,
                                                              "error: ",
                                                              "cause: ",
                                                              "Caused by: "};
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view mark : kMarks) {
      if (!line.starts_with(mark)) continue;
      line.remove_prefix(mark.size());
      again = true;
    }
  }
  while (line.ends_with(' ') || line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

std::vector<std::string_view> Lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string Hint(std::string_view sentence) {
  if (Has(sentence, "no usable wheels") || Has(sentence, "building from source is disabled") ||
      Has(sentence, "no wheels with a matching") || Has(sentence, "only-binary")) {
    return "this package has no wheel for this Python; to build it from source, which runs its "
           "code while installing, "
           "allow it with environment=Environment(dependencies=[...], allow_sdists=True)";
  }
  if (Has(sentence, "401 Unauthorized") || Has(sentence, "403 Forbidden")) {
    return "the index wants another user or password: give them in its address, or in ~/.netrc";
  }
  if (Has(sentence, "is not in this registry") ||
      Has(sentence, "could not be found or you do not have permission") ||
      Has(sentence, "was not found in the package registry") ||
      Has(sentence, "not found in the provided package")) {
    return "check the spelling of the name";
  }
  if (Has(sentence, "there is no version of") || Has(sentence, "No matching version found"))
    return "check the version: no such release is offered";
  for (const std::string_view network :
       {"Failed to fetch", "error sending request", "dns error", "timed out", "Could not connect",
        "Network unreachable", "status client error", "status server error", "ECONNREFUSED",
        "ENOTFOUND", "EAI_AGAIN", "ETIMEDOUT", "ERR_SOCKET_TIMEOUT"}) {
    if (Has(sentence, network)) {
      return "the package index could not be reached: check the network, the index URL, proxy and "
             "certificates";
    }
  }
  if (Has(sentence, "unsatisfiable") || Has(sentence, "conflict")) {
    return "the versions asked for exclude each other: loosen one of them";
  }
  return {};
}

}  // namespace

std::string ScrubCredentials(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    out += (static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7f ? ' ' : c;
    ++at;
    if (!out.ends_with("://")) continue;
    // The authority ends at the first of these; all before its last "@" is user and password.
    const size_t end = std::min(text.find_first_of("/?# \n\"'`)", at), text.size());
    const size_t sign = text.substr(at, end - at).rfind('@');
    if (sign != std::string_view::npos) at += sign + 1;
  }
  return out;
}

std::string InstallerSentence(std::string_view log) {
  std::string sentence;
  for (const std::string_view raw : Lines(log)) {
    const std::string_view line = Undecorated(raw);
    const bool noise = line.empty() || line.starts_with("hint: ") ||
                       line.starts_with("warning: ") || line.starts_with("Using ") ||
                       line.starts_with("Resolved ") || line.starts_with("Prepared ") ||
                       line.starts_with("No solution found when resolving");
    if (noise) continue;
    if (!sentence.empty()) sentence += ' ';
    sentence += line;
  }
  if (sentence.empty())
    sentence = log.empty() ? "the installer said nothing" : std::string(Undecorated(log));
  sentence = ScrubCredentials(sentence);
  if (sentence.size() > kMaxSentence) {
    size_t cut = kMaxSentence;
    while (cut > 0 && (static_cast<unsigned char>(sentence[cut]) & 0xc0) == 0x80)
      --cut;  // keep UTF-8 whole
    sentence.resize(cut);
    sentence += " ...";
  }
  return sentence;
}

Error InstallError(std::string_view stage, std::string_view log) {
  const std::string sentence = InstallerSentence(log);
  if (Has(log, "No space left on device") || Has(log, "os error 28")) {
    return Error(Code::kPlatform, "the disk is full: " + sentence,
                 "free some space; `hutch env` lists what Hutch keeps");
  }
  // The resolver's sentences need no introduction; later failures do.
  const std::string prefix = stage == "resolve" ? "" : "installing the dependencies failed: ";
  return Error(Code::kInstallFailed, prefix + sentence, Hint(std::string(log)));
}

}  // namespace hutch

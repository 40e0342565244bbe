// SPDX-License-Identifier: Apache-2.0

#include "podman/podman.h"

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <semaphore>
#include <thread>
#include <utility>

#include "podman/replies.h"
#include "podman/transport.h"
#include "wire/clock.h"
#include "wire/error.h"

namespace hutch {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using namespace replies;

constexpr milliseconds kUsual = seconds(30);
constexpr milliseconds kSlow = seconds(120);  // create and start queue behind Podman's locks
constexpr milliseconds kImport = seconds(600);
constexpr int kRemoveRetries = 12;
constexpr int kParallelStarts = 2;  // more of them only queue in Podman and make every one slower

std::string Encode(const std::string& text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const unsigned char c : text) {
    if (std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '~') {
      out += static_cast<char>(c);
    } else {
      out += '%';
      out += kHex[c >> 4];
      out += kHex[c & 15];
    }
  }
  return out;
}

// A container's id or name as Podman itself defines one; nothing else may enter a path.
std::string CheckName(const std::string& name) {
  const auto valid = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-';
  };
  if (name.empty() || name.size() > 255 || std::isalnum(static_cast<unsigned char>(name[0])) == 0 ||
      !std::all_of(name.begin(), name.end(), valid)) {
    throw Error(Code::kInvalidArgument,
                "this is not the name of a container: \"" + name.substr(0, 64) + "\"");
  }
  return name;
}

bool Mentions(const PodmanReply& reply, std::string_view words) {
  return reply.body.find(words) != std::string::npos;
}

// A service that is killed while it removes a container leaves one without storage: it is still
// listed and has to be removed, but can no longer be inspected.
bool IsHalfRemoved(const PodmanReply& reply) {
  return reply.status == 500 && Mentions(reply, "container not known");
}

std::optional<ContainerInfo> Listed(const Podman& podman, const std::string& id_or_name) {
  for (ContainerInfo& info : podman.List("")) {
    if (info.id == id_or_name || info.name == id_or_name) return std::move(info);
  }
  return std::nullopt;
}

// Removes what a service left under that name. Returns whether there was anything.
bool FreeName(Podman* podman, const std::string& name) {
  for (const ContainerInfo& left : podman->ListRemains()) {
    if (left.name != name) continue;
    podman->RemoveRemains(left.id);
    return true;
  }
  return false;
}

// The container that a lost or refused create left behind, if it is the requested one.
std::optional<std::string> Existing(const Podman& podman, const Json& spec) {
  const std::string name = Text(spec, "name");
  if (name.empty()) return std::nullopt;
  const std::optional<ContainerInfo> found = podman.Inspect(name);
  if (!found || found->name != name) return std::nullopt;
  for (const auto& [key, value] : Labels(Member(spec, "labels"))) {
    if (!HasLabel(*found, key, value)) return std::nullopt;
  }
  return found->id;
}

class Turn {
 public:
  explicit Turn(std::counting_semaphore<kParallelStarts>* turns) : turns_(turns) {
    turns_->acquire();
  }
  ~Turn() { turns_->release(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::counting_semaphore<kParallelStarts>* turns_;
};

}  // namespace

struct Podman::Impl {
  explicit Impl(std::string socket_path) : transport(std::move(socket_path)) {}

  const PodmanTransport transport;
  std::mutex helper_mutex;
  std::string helper;  // "": not known yet
  std::counting_semaphore<kParallelStarts> starts{kParallelStarts};

  PodmanReply Get(const std::string& path) const {
    return transport.SendPatiently({.method = "GET", .path = path, .timeout = kUsual});
  }
  PodmanReply Post(const std::string& path, milliseconds timeout,
                   const std::string& json = {}) const {
    return transport.SendPatiently(
        {.method = "POST", .path = path, .timeout = timeout, .json = json});
  }
};

Podman::Podman(std::string socket_path) : impl_(std::make_unique<Impl>(std::move(socket_path))) {}
Podman::~Podman() = default;

bool Podman::Ping(milliseconds timeout) const { return impl_->transport.Pings(timeout); }

PodmanVersion Podman::Version() const { return VersionOf(impl_->Get("/info")); }

std::string Podman::NetworkHelper() const {
  const std::lock_guard lock(impl_->helper_mutex);
  if (impl_->helper.empty()) impl_->helper = Version().network_helper;
  return impl_->helper;
}

std::string Podman::UsualNetworkHelper() const {
  const PodmanReply reply = impl_->Get("/_ping");
  if (!reply.ok()) Refuse("reach Podman", reply);
  return std::atoi(reply.api_version.c_str()) < 5 ? "slirp4netns" : "pasta";
}

std::string Podman::Create(const std::string& spec_json) {
  const Json spec = Json::parse(spec_json, nullptr, false);
  if (!spec.is_object()) throw Error(Code::kInvalidArgument, "a container's spec is a JSON object");
  const Turn turn(&impl_->starts);
  PodmanReply reply;
  try {
    reply = impl_->Post("/containers/create", kSlow, spec_json);
  } catch (const Error& error) {
    // The answer was lost; the container may be there.
    if (error.code() == Code::kPodmanDown) throw;
    if (const auto id = Existing(*this, spec)) return *id;
    throw;
  }
  if (!reply.ok() && (reply.status == 409 || Mentions(reply, "already in use"))) {
    if (const auto id = Existing(*this, spec)) return *id;
    // Nobody else creates one of that name, so it is not one that is just being made.
    if (FreeName(this, Text(spec, "name"))) {
      reply = impl_->Post("/containers/create", kSlow, spec_json);
    }
  }
  const std::string id = Text(Parse("create a container", reply), "Id");
  if (id.empty())
    throw Error(Code::kPodman, "cannot create a container: Podman's answer has no Id");
  return id;
}

void Podman::Start(const std::string& id) {
  const Turn turn(&impl_->starts);
  const PodmanReply reply = impl_->Post("/containers/" + CheckName(id) + "/start", kSlow);
  if (!reply.ok() && reply.status != 304) Refuse("start " + id, reply);  // 304: it runs already
}

void Podman::Kill(const std::string& id, const std::string& signal) {
  const PodmanReply reply =
      impl_->Post("/containers/" + CheckName(id) + "/kill?signal=" + Encode(signal), kUsual);
  const bool gone = reply.status == 404 || reply.status == 409 || Mentions(reply, "state improper");
  if (!reply.ok() && !gone) Refuse("kill " + id, reply);
}

void Podman::Rename(const std::string& id, const std::string& name) {
  const PodmanReply reply = impl_->Post(
      "/containers/" + CheckName(id) + "/rename?name=" + Encode(CheckName(name)), kUsual);
  if (!reply.ok()) Refuse("rename " + id, reply);
}

void Podman::Remove(const std::string& id) {
  CheckName(id);
  std::optional<ContainerInfo> info = Inspect(id);
  if (!info) return;
  if (info->state == "running" || info->state == "paused" || info->state == "stopping") {
    try {
      Kill(id);
    } catch (const Error&) {
      // The forced delete kills too; this one only makes it quick.
    }
    // Podman sleeps 100 ms at a time for a container that still runs, so it should be dead before
    // Podman checks.
    for (int turn = 0; turn < 40; ++turn) {
      info = Inspect(id);
      if (!info) return;
      if (info->state != "running" && info->state != "stopping") break;
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  PodmanReply reply;
  for (int attempt = 0; attempt < kRemoveRetries; ++attempt) {
    reply = impl_->transport.Send({.method = "DELETE",
                                   .path = "/containers/" + id + "?force=true&v=true&timeout=0",
                                   .timeout = kSlow});
    if (reply.status == 404) return;
    if (!Inspect(id)) return;  // also after a 200: Podman 4 then hides a failure inside the answer
    if (!reply.ok() && reply.status != 409 && reply.status != 500) break;
    std::this_thread::sleep_for(PodmanTransport::Backoff(attempt));
  }
  Refuse("remove " + id, reply);
}

std::optional<ContainerInfo> Podman::Inspect(const std::string& id_or_name) const {
  const PodmanReply reply = impl_->Get("/containers/" + CheckName(id_or_name) + "/json");
  if (reply.status == 404) return std::nullopt;
  if (IsHalfRemoved(reply)) return Listed(*this, id_or_name);
  return ContainerOf(id_or_name, reply);
}

bool HasLabel(const ContainerInfo& info, const std::string& label, const std::string& value) {
  const auto found = info.labels.find(label);
  return found != info.labels.end() && found->second == value;
}

bool IsOf(const ContainerInfo& info, const std::string& generation) {
  return HasLabel(info, "hutch.generation", generation);
}

bool TwoAgentsRun(const std::vector<ContainerInfo>& containers) {
  return std::ranges::count_if(containers, [](const ContainerInfo& info) {
           return HasLabel(info, "hutch.role", "agent") && info.state == "running";
         }) > 1;
}

std::vector<ContainerInfo> Removable(const std::vector<ContainerInfo>& containers,
                                     const std::string& role, const std::string& generation) {
  const bool others = TwoAgentsRun(containers);
  std::vector<ContainerInfo> found;
  for (const ContainerInfo& info : containers) {
    if (HasLabel(info, "hutch.role", role) && (!others || IsOf(info, generation)))
      found.push_back(info);
  }
  return found;
}

std::vector<ContainerInfo> Podman::List(const std::string& label) const {
  const Json filters = {{"label", {label}}};
  return ContainersOf(impl_->Get("/containers/json?all=true" +
                                 (label.empty() ? "" : "&filters=" + Encode(filters.dump()))));
}

std::vector<ContainerInfo> Podman::ListRemains() const {
  std::vector<ContainerInfo> found =
      ContainersOf(impl_->Get("/containers/json?all=true&external=true"));
  std::erase_if(found, [](const ContainerInfo& info) { return info.state != "storage"; });
  return found;
}

void Podman::RemoveRemains(const std::string& id) {
  const PodmanReply reply =
      impl_->transport.SendPatiently({.method = "DELETE",
                                      .path = "/containers/" + CheckName(id) + "?force=true",
                                      .timeout = kSlow});
  if (!reply.ok() && reply.status != 404) Refuse("remove " + id, reply);
}

std::string Podman::Logs(const std::string& id, size_t max_bytes) const {
  const PodmanReply reply =
      impl_->Get("/containers/" + CheckName(id) + "/logs?stdout=true&stderr=true&tail=400");
  if (reply.status == 404) return {};
  if (!reply.ok()) Refuse("read the logs of " + id, reply);
  std::string text = TextOfLogs(reply);
  if (text.size() > max_bytes) text.erase(0, text.size() - max_bytes);
  return text;
}

std::optional<int> Podman::WaitExit(const std::string& id, milliseconds timeout) const {
  const auto deadline = Clock::now() + timeout;
  milliseconds pause(5);
  for (;;) {
    const std::optional<ContainerInfo> info = Inspect(id);
    if (!info) throw Error(Code::kPodman, "cannot wait for " + id + ": the container is gone");
    if (info->state == "exited" || info->state == "stopped") return info->exit_code;
    if (Clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 3 / 2, milliseconds(100));
  }
}

std::optional<std::string> Podman::ImageId(const std::string& reference) const {
  const PodmanReply reply = impl_->Get("/images/" + Encode(reference) + "/json");
  if (reply.status == 404) return std::nullopt;
  std::string id = Text(Parse("inspect the image " + reference, reply), "Id");
  if (id.empty())
    throw Error(Code::kPodman,
                "cannot inspect the image " + reference + ": Podman's answer has no Id");
  return id;
}

std::optional<ImageInfo> Podman::InspectImage(const std::string& reference) const {
  const PodmanReply reply = impl_->Get("/images/" + Encode(reference) + "/json");
  if (reply.status == 404) return std::nullopt;
  const Json body = Parse("inspect the image " + reference, reply);
  ImageInfo info{Text(body, "Id"), Text(body, "Architecture"), Text(body, "Os"),
                 Labels(Member(body, "Annotations"))};
  if (info.id.empty())
    throw Error(Code::kPodman,
                "cannot inspect the image " + reference + ": Podman's answer has no Id");
  return info;
}

void Podman::PullImage(const std::string& reference, bool verify_tls, milliseconds timeout,
                       const std::function<void(const std::string&)>& heard,
                       const std::function<bool()>& stopped) {
  const std::string path = "/images/pull?policy=missing&reference=" + Encode(reference) +
                           "&tlsVerify=" + (verify_tls ? "true" : "false");
  std::string rest, failure;
  bool pulled = false;
  // One JSON value a line, and status 200 before Podman knows how it ends.
  const auto read = [&](std::string_view piece) {
    rest += piece;
    size_t begin = 0;
    for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const Json item = Json::parse(rest.substr(begin, end - begin), nullptr, false);
      if (const std::string text = Text(item, "error"); !text.empty()) failure = text;
      if (!Text(item, "id").empty()) pulled = true;
      if (const std::string text = Text(item, "stream"); heard && !text.empty()) heard(text);
    }
    rest.erase(0, begin);
  };
  const PodmanReply reply = impl_->transport.Send(
      {.method = "POST", .path = path, .timeout = timeout, .heard = read, .stopped = stopped});
  if (!reply.ok()) failure = Reason(reply);
  if (failure.empty() && !pulled) failure = "Podman's answer broke off";
  if (failure.empty()) return;
  failure = failure.substr(0, 2000);
  std::replace(failure.begin(), failure.end(), '\n', ' ');
  throw Error(Code::kPodman, failure);
}

std::string Podman::ImportImage(const std::string& reference,
                                const std::function<size_t(char*, size_t)>& read,
                                const std::vector<std::string>& changes) {
  std::string path = "/images/import?reference=" + Encode(reference);
  for (const std::string& change : changes) path += "&changes=" + Encode(change);
  const std::string id = Text(
      Parse(
          "import an image",
          impl_->transport.Send({.method = "POST", .path = path, .timeout = kImport, .tar = read})),
      "Id");
  if (id.empty()) throw Error(Code::kPodman, "cannot import an image: Podman's answer has no Id");
  return id;
}

std::vector<std::string> Podman::ListImages(const std::string& prefix) const {
  const Json body = Parse("list images", impl_->Get("/images/json"));
  std::vector<std::string> found;
  if (!body.is_array()) return found;
  for (const Json& item : body) {
    const Json& tags = Member(item, "RepoTags");
    if (!tags.is_array()) continue;
    for (const Json& tag : tags) {
      if (tag.is_string() && tag.get<std::string>().starts_with(prefix))
        found.push_back(tag.get<std::string>());
    }
  }
  return found;
}

}  // namespace hutch

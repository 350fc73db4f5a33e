#include "tests/integration/daemon/harness.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "proto/base/status.h"
#include "proto/wire.h"

namespace sluice::testing {
namespace {

constexpr absl::Duration kReplyTimeout = absl::Seconds(120);

}  // namespace

RunningDaemon::RunningDaemon(const std::string& toml,
                             const DaemonLimits& limits)
    : kept_(limits.kept) {
  const std::string config = directory_.File("sluiced.toml");
  std::ofstream file(config);
  if (toml.find("[http]") == std::string::npos) {
    file << "[http]\nlisten = \"\"\n";
  }
  // Tests and benches kill the daemon more often than the default allows.
  if (kept_) file << "[restart]\nfreeze_after = 0\n";
  if (toml.find("[device]") == std::string::npos) {
    file << "[device]\ndriver = \"sim\"\n";
  }
  file << toml;
  file.close();
  argv_ = {BinaryPath("sluiced"), "--config", config, "--runtime-dir",
           directory_.path()};
  if (kept_) {
    argv_ = {BinaryPath("sluiced-keeper"),
             "--runtime-dir",
             directory_.path(),
             "--",
             "--config",
             config};
  }
  if (limits.user != 0) {
    EXPECT_EQ(chown(directory_.path().c_str(), limits.user, limits.user), 0);
    argv_.insert(argv_.begin(),
                 {"/usr/bin/setpriv", fmt::format("--reuid={}", limits.user),
                  "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"});
  }
  if (limits.user_namespace) {
    argv_.insert(argv_.begin(),
                 {"/usr/bin/unshare", "--user", "--map-root-user"});
  }
  if (limits.open_files != 0) {
    argv_.insert(argv_.begin(),
                 {"/usr/bin/prlimit",
                  fmt::format("--nofile={0}:{0}", limits.open_files)});
  }
  Start();
}

RunningDaemon::~RunningDaemon() {
  if (!kept_) return;
  // Not SIGKILL: a killed keeper leaves its daemon running.
  process_->Kill(SIGTERM);
  process_->Join();
}

void RunningDaemon::Start() {
  process_ = Child::Spawn(argv_);
  if (!process_->WaitForOutput("sluiced: ready", kReplyTimeout)) {
    ADD_FAILURE() << "sluiced did not start: " << process_->Join().err;
  }
}

void RunningDaemon::KillAndStartNext() {
  process_->Kill(SIGKILL);
  process_->Join();
  Start();
}

std::string RunningDaemon::ReadyField(const std::string& name) {
  const std::string text = process_->output();
  const size_t at = text.find(name + "=");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 1;
  return text.substr(begin, text.find_first_of(" ,\n", begin) - begin);
}

Bytes RunningDaemon::Memory(const std::string& line) const {
  std::ifstream file(fmt::format("/proc/{}/status", process_->pid()));
  for (std::string text; std::getline(file, text);) {
    if (text.starts_with(line + ":")) {
      return KiB(std::stoll(text.substr(line.size() + 1)));
    }
  }
  return Bytes(0);
}

int RunningDaemon::Descriptors() const {
  const std::filesystem::directory_iterator fds(
      fmt::format("/proc/{}/fd", process_->pid()));
  return static_cast<int>(std::distance(begin(fds), end(fds)));
}

std::vector<UniqueFd> GpuNodes(int client, int gpu) {
  sockaddr_un address = {};
  socklen_t size = sizeof(address);
  EXPECT_EQ(getpeername(client, reinterpret_cast<sockaddr*>(&address), &size),
            0);
  return wire::OpenGpuNodes(address.sun_path,
                            DeviceIndex(static_cast<uint64_t>(gpu)));
}

absl::StatusOr<RawClient> RawClient::Connect(const std::string& socket) {
  SLUICE_ASSIGN_OR_RETURN(UniqueFd fd, wire::Connect(socket));
  return RawClient(std::move(fd));
}

absl::StatusOr<wire::Message> RawClient::ReceiveWithin(absl::Duration timeout) {
  pollfd readable = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
  if (poll(&readable, 1,
           static_cast<int>(absl::ToInt64Milliseconds(timeout))) == 0) {
    return absl::DeadlineExceededError("nothing came");
  }
  SLUICE_ASSIGN_OR_RETURN(auto message, wire::Receive(socket_.get()));
  if (!message) return absl::UnavailableError("the daemon closed the session");
  generation_ = message->packet.generation();
  return *std::move(message);
}

absl::StatusOr<RawClient::Reply> RawClient::Call(const wire::Request& request,
                                                 std::vector<int> fds,
                                                 uint64_t id) {
  wire::Packet packet;
  packet.set_id(id != 0 ? id : next_id_++);
  *packet.mutable_request() = request;
  const absl::Status sent = wire::Send(socket_.get(), packet, fds);
  // A refused session is closed, but the reason can still be read.
  if (!sent.ok() && !absl::IsUnavailable(sent)) return sent;
  Reply whole;
  while (true) {
    SLUICE_ASSIGN_OR_RETURN(wire::Message message,
                            ReceiveWithin(kReplyTimeout));
    if (message.packet.has_event()) {
      events_.push_back(std::move(message));
      continue;
    }
    const bool refused =
        message.packet.id() == 0 && message.packet.reply().has_error();
    if (message.packet.id() != packet.id() && !refused) {
      return absl::InternalError(
          fmt::format("reply to request {} instead of {}", message.packet.id(),
                      packet.id()));
    }
    const wire::Reply& reply = message.packet.reply();
    if (reply.has_error()) {
      return absl::Status(static_cast<absl::StatusCode>(reply.error().code()),
                          reply.error().message());
    }
    const auto had = whole.body.granted().extent_bytes();
    whole.body = reply;
    for (auto& fd : message.fds) whole.fds.push_back(std::move(fd));
    if (!reply.has_granted()) return whole;
    if (had.size() > 0) {
      *whole.body.mutable_granted()->mutable_extent_bytes() = had;
      whole.body.mutable_granted()->mutable_extent_bytes()->MergeFrom(
          reply.granted().extent_bytes());
    }
    if (reply.granted().part() + 1 == reply.granted().parts()) return whole;
  }
}

absl::StatusOr<RawClient::Reply> RawClient::Hello(const std::string& job,
                                                  int rank, int ranks,
                                                  int gpu) {
  wire::Request request;
  auto* hello = request.mutable_hello();
  hello->set_protocol(wire::kProtocols.newest);
  hello->set_job(job);
  hello->set_rank(rank);
  hello->set_world_size(ranks);
  hello->set_local_ranks(ranks);
  hello->set_gpu(gpu);
  const std::vector<UniqueFd> nodes = GpuNodes(socket_.get(), gpu);
  std::vector<int> shown;
  shown.reserve(nodes.size());
  for (const UniqueFd& node : nodes) shown.push_back(node.get());
  return Call(request, shown);
}

absl::StatusOr<RawClient::Reply> RawClient::Observe() {
  wire::Request request;
  request.mutable_hello()->set_protocol(wire::kProtocols.newest);
  request.mutable_hello()->set_observer(true);
  return Call(request);
}

absl::StatusOr<RawClient::Reply> RawClient::Lease(wire::Lease::Kind kind,
                                                  Bytes size, int ordinal) {
  wire::Request request;
  request.mutable_lease()->set_kind(kind);
  request.mutable_lease()->set_ordinal(ordinal);
  request.mutable_lease()->set_bytes(size.size());
  return Call(request);
}

absl::StatusOr<RawClient::Reply> RawClient::Free(uint64_t lease) {
  wire::Request request;
  request.mutable_free()->set_lease_id(lease);
  return Call(request);
}

absl::StatusOr<wire::Event> RawClient::NextEvent(absl::Duration timeout,
                                                 UniqueFd* fd) {
  if (events_.empty()) {
    SLUICE_ASSIGN_OR_RETURN(wire::Message message, ReceiveWithin(timeout));
    if (!message.packet.has_event()) {
      return absl::InternalError("a reply came instead of an event");
    }
    events_.push_back(std::move(message));
  }
  wire::Message message = std::move(events_.front());
  events_.erase(events_.begin());
  if (fd != nullptr && !message.fds.empty()) *fd = std::move(message.fds[0]);
  return message.packet.event();
}

namespace {

absl::StatusOr<wire::Welcome> AskNode(const std::string& socket) {
  SLUICE_ASSIGN_OR_RETURN(RawClient client, RawClient::Connect(socket));
  SLUICE_ASSIGN_OR_RETURN(const RawClient::Reply reply, client.Observe());
  return reply.body.welcome();
}

}  // namespace

void ExpectPolicyIsRefused(const std::string& text,
                           const std::vector<std::string>& words) {
  const TempDir kept;
  std::ofstream(kept.File("policy")) << text;
  std::ofstream(kept.File("config.toml"))
      << fmt::format("[policy]\nfolder = \"{}\"\n", kept.path());
  for (const bool check : {false, true}) {
    std::vector<std::string> argv = {
        BinaryPath("sluiced"),   "--driver",       "sim",
        "--runtime-dir",         kept.File("run"), "--config",
        kept.File("config.toml")};
    if (check) argv.push_back("--check-config");
    const ChildResult ended = Child::Spawn(argv)->Join();
    EXPECT_EQ(ended.exit_code, 2);
    for (const std::string& each : words) {
      EXPECT_NE(ended.err.find(each), std::string::npos) << ended.err;
    }
  }
}

absl::StatusOr<wire::Pool> GpuPool(const std::string& socket, int gpu) {
  SLUICE_ASSIGN_OR_RETURN(const wire::Welcome node, AskNode(socket));
  return node.gpus(gpu).pool();
}

absl::StatusOr<wire::Pool> HostPool(const std::string& socket, int numa) {
  SLUICE_ASSIGN_OR_RETURN(const wire::Welcome node, AskNode(socket));
  return node.host_pools(numa);
}

absl::StatusOr<absl::Duration> WaitUntilFree(const std::string& socket, int gpu,
                                             absl::Duration timeout) {
  const absl::Time start = absl::Now();
  while (true) {
    SLUICE_ASSIGN_OR_RETURN(const wire::Pool pool, GpuPool(socket, gpu));
    const absl::Duration passed = absl::Now() - start;
    if (pool.free_bytes() == pool.total_bytes()) return passed;
    if (passed > timeout) {
      return absl::DeadlineExceededError(
          fmt::format("GPU {} still has {} leased, {} in quarantine", gpu,
                      pool.leased_bytes(), pool.quarantined_bytes()));
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
}

void AwaitRefills(int limits_page) {
  void* const page =
      mmap(nullptr, sizeof(GrantLimits), PROT_READ, MAP_SHARED, limits_page, 0);
  ASSERT_NE(page, MAP_FAILED);
  const auto& beat = static_cast<const GrantLimits*>(page)->heartbeat_ns;
  const absl::Time late = absl::Now() + absl::Seconds(10);
  // Two refills: the first one may have read the pages before the call.
  for (int i = 0; i < 2; ++i) {
    const uint64_t before = beat.load();
    while (beat.load() == before && absl::Now() < late) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  munmap(page, sizeof(GrantLimits));
}

}  // namespace sluice::testing

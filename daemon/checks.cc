#include "daemon/checks.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "daemon/metrics/http_server.h"
#include "daemon/node.h"
#include "daemon/service/takeover/handover.h"
#include "daemon/start_options.h"
#include "daemon/state/state_file.h"
#include "proto/admin/admin.grpc.pb.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "proto/base/temporary_folder.h"
#include "proto/base/unique_fd.h"
#include "proto/base/unix_address.h"
#include "proto/base/whole_io.h"

namespace sluice::daemon {
namespace {

// Does not try ports and sockets, because the running daemon may hold them.
absl::Status CheckConfig(const Arguments& arguments, const Config& config) {
  SLUICE_RETURN_IF_ERROR(CheckHttpSockets(config.http_listen.value_or(""),
                                          config.http_socket_group));
  const Clocks now = ClocksNow(MonotonicClock());
  const PolicyFile file = PolicyFileOf(config, arguments);
  // The policy is checked before the slow parts.
  SLUICE_RETURN_IF_ERROR(file.Read(now, file.owner()).status());
  SLUICE_RETURN_IF_ERROR(FindWorkerUser(config.worker_user).status());
  SLUICE_ASSIGN_OR_RETURN(const auto folder, TemporaryFolder::Make("sluiced"));
  SLUICE_ASSIGN_OR_RETURN(const Node node, OpenNode(config, folder.path()));
  SLUICE_RETURN_IF_ERROR(
      UsablePolicy(file, file.owner(), node.config, now).status());
  const std::string good =
      fmt::format("{}: good: {}\n",
                  arguments.config.empty() ? "defaults" : arguments.config,
                  node.description);
  std::fputs(good.c_str(), stdout);  // fmt::print would throw on a full disk
  for (const std::string& warning : node.config.warnings) {
    fmt::print(stderr, "warning: {}\n", warning);
  }
  return absl::OkStatus();
}

constexpr std::chrono::seconds kDeadline{5};
// A supervisor restarts a daemon within this time.
constexpr absl::Duration kStartedAgain = absl::Seconds(1);
constexpr absl::Duration kPause = absl::Milliseconds(50);

enum class Socket { kNone, kNobodyListens, kServed };

// A socket that this user may not connect to counts as served.
Socket SocketAt(const std::string& path) {
  const auto address = UnixAddress(path);
  const UniqueFd fd(
      socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!address || !fd ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address),
              sizeof(*address)) == 0) {
    return Socket::kServed;
  }
  if (errno == ENOENT || errno == ENOTDIR) return Socket::kNone;
  return errno == ECONNREFUSED ? Socket::kNobodyListens : Socket::kServed;
}

// A killed daemon leaves its socket file behind.
bool DaemonRuns(const std::string& admin_socket) {
  const absl::Time end = absl::Now() + kStartedAgain;
  Socket found = SocketAt(admin_socket);
  while (found == Socket::kNobodyListens && absl::Now() < end) {
    absl::SleepFor(kPause);
    found = SocketAt(admin_socket);
  }
  return found == Socket::kServed;
}

absl::StatusOr<admin::ShowStateReply> Ask(const std::string& path) {
  grpc::ChannelArguments arguments;
  // The daemon's own replies are trusted.
  arguments.SetMaxReceiveMessageSize(-1);
  admin::Admin::Stub stub(grpc::CreateCustomChannel(
      "unix:" + std::filesystem::absolute(path).string(),
      grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kDeadline);
  admin::ShowStateReply reply;
  const grpc::Status status = stub.ShowState(&context, {}, &reply);
  if (status.ok()) return reply;
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::FailedPreconditionError(
        "the running daemon is too old to hand its state over");
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      fmt::format("cannot ask the daemon at {}: {}", path,
                                  status.error_message()));
}

// Returns the state of a serving or frozen daemon; nullopt if it is void.
absl::StatusOr<std::optional<StateFile::Contents>> ContentsOf(
    const admin::ShowStateReply& reply) {
  if (reply.file().empty()) {
    SLUICE_RETURN_IF_ERROR(
        CheckStateVersion(reply.version(), reply.oldest_reader()));
    return StateFile::Contents{reply.rows(), {}};
  }
  const UniqueFd copy(memfd_create("sluice-state", MFD_CLOEXEC));
  if (!copy) return ErrnoStatus(errno, "make memory for the state");
  SLUICE_RETURN_IF_ERROR(
      WriteAll(copy.get(), reply.file(), "the state into memory"));
  SLUICE_ASSIGN_OR_RETURN(const auto file, OpenSaved(copy.get()));
  if (file == nullptr) return std::nullopt;
  return file->TakeContents();
}

// Reads the state of the daemon on `admin_socket` as a daemon of `node` would,
// and describes it in one line. Unimplemented (another version),
// FailedPrecondition, InvalidArgument: this binary could not take over. If no
// daemon runs, the check passes.
absl::StatusOr<std::string> CheckState(const std::string& admin_socket,
                                       const NodeConfig& node) {
  if (!DaemonRuns(admin_socket)) {
    return fmt::format("no daemon runs at {}", admin_socket);
  }
  SLUICE_ASSIGN_OR_RETURN(const admin::ShowStateReply reply, Ask(admin_socket));
  SLUICE_ASSIGN_OR_RETURN(const auto contents, ContentsOf(reply));
  if (!contents) {
    return "what was saved was given up: the next daemon begins anew";
  }
  const Core fresh(node, absl::UnixEpoch());
  SLUICE_ASSIGN_OR_RETURN(const CoreState saved, ReadSaved(*contents, fresh));
  const std::set<std::string> kept(reply.kept().begin(), reply.kept().end());
  // A serving daemon has its memory.
  if (!kept.empty()) SLUICE_RETURN_IF_ERROR(CheckLeft(saved, kept));
  return fmt::format(
      "{} sessions, {} leases{}", saved.sessions.size(),
      saved.ledger.leases.size(),
      reply.file().empty() ? fmt::format(", of version {}", reply.version())
      : !kept.empty()      ? " of a frozen daemon"
                           : " of a frozen daemon, which is too old to say "
                             "whether all its memory is there");
}

absl::Status CheckRunning(const Arguments& arguments, const Config& config) {
  SLUICE_ASSIGN_OR_RETURN(const auto folder, TemporaryFolder::Make("sluiced"));
  SLUICE_ASSIGN_OR_RETURN(const Node node, OpenNode(config, folder.path()));
  const auto state =
      CheckState(arguments.runtime_dir + "/admin.sock", node.config);
  if (!state.ok()) {
    return Annotate(state.status(), "it would not be taken over");
  }
  // An administrator may run this as another user than the daemon's.
  const PolicyFile file = PolicyFileOf(config, arguments);
  const auto policy = UsablePolicy(file, file.owner(), node.config,
                                   ClocksNow(MonotonicClock()));
  const bool unread = absl::IsPermissionDenied(policy.status());
  if (!policy.ok() && !unread) {
    return Annotate(policy.status(), "it would not take over");
  }
  const std::string good = fmt::format(
      "good: {}{}\n", *state,
      unread ? ", but for the policy, which this user may not read" : "");
  std::fputs(good.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Policy> UsablePolicy(const PolicyFile& file, uid_t daemon,
                                    const NodeConfig& node, const Clocks& now) {
  SLUICE_ASSIGN_OR_RETURN(Policy policy, file.Read(now, daemon));
  SLUICE_RETURN_IF_ERROR(
      Core(node, now.monotonic).SetPolicy(policy, now.monotonic));
  return policy;
}

absl::Status Check(const Arguments& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const Config config, ConfigOf(arguments));
  if (arguments.check) {
    SLUICE_RETURN_IF_ERROR(CheckConfig(arguments, config));
  }
  return arguments.check_state ? CheckRunning(arguments, config)
                               : absl::OkStatus();
}

}  // namespace sluice::daemon

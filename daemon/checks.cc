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
#include "daemon/serve.h"
#include "daemon/service/takeover/handover.h"
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

constexpr std::chrono::seconds kDeadline{5};
// A supervisor restarts a daemon within this time.
constexpr absl::Duration kStartedAgain = absl::Seconds(1);
constexpr absl::Duration kPause = absl::Milliseconds(50);

// Returns whether a daemon serves the socket. A killed daemon leaves its socket
// file behind, so a refused connection is tried again for kStartedAgain.
bool DaemonRuns(const std::string& admin_socket) {
  const auto address = UnixAddress(admin_socket);
  const absl::Time end = absl::Now() + kStartedAgain;
  while (true) {
    const UniqueFd fd(
        socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!address || !fd ||
        connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address),
                sizeof(*address)) == 0) {
      return true;
    }
    if (errno == ENOENT || errno == ENOTDIR) return false;
    // A socket that this user may not connect to counts as served.
    if (errno != ECONNREFUSED) return true;
    if (absl::Now() >= end) return false;
    absl::SleepFor(kPause);
  }
}

absl::StatusOr<admin::ShowStateReply> Ask(const std::string& path) {
  grpc::ChannelArguments arguments;
  // No limit: a state may be large, and the daemon is trusted.
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

// Returns a serving or frozen daemon's state; nullopt if the state is void.
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
    return "the saved state is void: the next daemon starts without it";
  }
  const Core fresh(node, absl::UnixEpoch());
  SLUICE_ASSIGN_OR_RETURN(const CoreState saved, ReadSaved(*contents, fresh));
  const std::set<std::string> kept(reply.kept().begin(), reply.kept().end());
  // Only a frozen daemon lists what is kept: a serving daemon lacks nothing.
  if (!kept.empty()) SLUICE_RETURN_IF_ERROR(CheckLeft(saved, kept));
  return fmt::format(
      "{} sessions, {} leases{}", saved.sessions.size(),
      saved.ledger.leases.size(),
      reply.file().empty() ? fmt::format(", of version {}", reply.version())
      : !kept.empty()      ? " of a frozen daemon"
                           : " of a frozen daemon, which is too old to say "
                             "whether all its memory is there");
}

// fmt::print would throw on a full disk.
void PrintPassed(const std::string& line) { std::fputs(line.c_str(), stdout); }

}  // namespace

// The checks bind no port or socket, because a running daemon may serve there.
absl::Status Check(const Arguments& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const Config config, ConfigOf(arguments));
  const Clocks now = ClocksNow(MonotonicClock());
  // The daemon's user is not known here: the folder's owner stands for it.
  const PolicyFile file = PolicyFileOf(config, arguments);
  if (arguments.check) {  // before the slow parts
    SLUICE_RETURN_IF_ERROR(CheckHttpSockets(config.http_listen.value_or(""),
                                            config.http_socket_group));
    SLUICE_RETURN_IF_ERROR(file.Read(now, file.owner()).status());
    SLUICE_RETURN_IF_ERROR(FindWorkerUser(config.worker_user).status());
  }
  SLUICE_ASSIGN_OR_RETURN(const auto folder, TemporaryFolder::Make("sluiced"));
  SLUICE_ASSIGN_OR_RETURN(const Node node, OpenNode(config, folder.path()));
  const absl::Status policy =
      UsablePolicy(file, file.owner(), node.config, now).status();
  if (arguments.check) {
    SLUICE_RETURN_IF_ERROR(policy);
    PrintPassed(
        fmt::format("{}: good: {}\n",
                    arguments.config.empty() ? "defaults" : arguments.config,
                    node.description));
    for (const std::string& warning : node.config.warnings) {
      std::fprintf(stderr, "warning: %s\n", warning.c_str());
    }
  }
  if (!arguments.check_state) return absl::OkStatus();
  const auto state =
      CheckState(arguments.runtime_dir + "/admin.sock", node.config);
  if (!state.ok()) {
    return Annotate(state.status(), "it would not be taken over");
  }
  const bool unread = absl::IsPermissionDenied(policy);
  if (!policy.ok() && !unread) {
    return Annotate(policy, "it would not take over");
  }
  PrintPassed(fmt::format(
      "good: {}{}\n", *state,
      unread ? ", but for the policy, which this user may not read" : ""));
  return absl::OkStatus();
}

}  // namespace sluice::daemon

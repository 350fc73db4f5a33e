#include "daemon/check_state.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "daemon/service/takeover/may_take_over.h"
#include "daemon/service/takeover/read_saved.h"
#include "daemon/state/state_file.h"
#include "daemon/state/state_versions.h"
#include "proto/admin/admin.grpc.pb.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"
#include "proto/base/unix_address.h"
#include "proto/base/whole_io.h"

namespace sluice::daemon {
namespace {

constexpr std::chrono::seconds kDeadline{5};
// A daemon that dies is started again within this, where anybody does that.
constexpr absl::Duration kStartedAgain = absl::Seconds(1);
constexpr absl::Duration kPause = absl::Milliseconds(50);

enum class Socket { kNone, kNobodyListens, kServed };

// One that cannot be asked, such as by a user who may not, is served.
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

// A daemon that was killed leaves its socket behind.
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
  arguments.SetMaxReceiveMessageSize(-1);  // the daemon's own is trusted
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

// What the daemon would save, or what a frozen one keeps; nullopt: it is void.
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

}  // namespace

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
  // A daemon that serves has its memory.
  if (!kept.empty()) SLUICE_RETURN_IF_ERROR(CheckLeft(saved, kept));
  return fmt::format(
      "{} sessions, {} leases{}", saved.sessions.size(),
      saved.ledger.leases.size(),
      reply.file().empty() ? fmt::format(", of version {}", reply.version())
      : !kept.empty()      ? " of a frozen daemon"
                           : " of a frozen daemon, which is too old to say "
                             "whether all its memory is there");
}

}  // namespace sluice::daemon

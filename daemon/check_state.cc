#include "daemon/check_state.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>

#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "daemon/service/takeover/read_saved.h"
#include "daemon/state/state_versions.h"
#include "proto/admin/admin.grpc.pb.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

constexpr std::chrono::seconds kDeadline{5};

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

}  // namespace

absl::StatusOr<std::string> CheckState(const std::string& admin_socket,
                                       const NodeConfig& node) {
  if (access(admin_socket.c_str(), F_OK) != 0) {
    return fmt::format("no daemon runs at {}", admin_socket);
  }
  SLUICE_ASSIGN_OR_RETURN(const admin::ShowStateReply reply, Ask(admin_socket));
  SLUICE_RETURN_IF_ERROR(
      CheckStateVersion(reply.version(), reply.oldest_reader()));
  const Core fresh(node, absl::UnixEpoch());
  SLUICE_ASSIGN_OR_RETURN(const CoreState saved,
                          ReadSaved({reply.rows(), {}}, fresh.Save()));
  return fmt::format("{} sessions, {} leases, of version {}",
                     saved.sessions.size(), saved.ledger.leases.size(),
                     reply.version());
}

}  // namespace sluice::daemon

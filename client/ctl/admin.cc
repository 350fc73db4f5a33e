#include "client/ctl/admin.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <pwd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "proto/admin/admin.grpc.pb.h"
#include "proto/base/status.h"

namespace sluice::ctl {
namespace {

constexpr std::chrono::seconds kDeadline{5};

// gRPC would say "failed to connect to all addresses".
absl::Status CheckSocket(const std::string& path) {
  if (access(path.c_str(), R_OK | W_OK) == 0) return absl::OkStatus();
  if (errno == EACCES) {
    return absl::PermissionDeniedError(fmt::format(
        "no permission to use {}: administration is for the daemon's user and "
        "group",
        path));
  }
  return absl::NotFoundError(
      fmt::format("no socket at {}: is sluiced running? start it, or name its "
                  "admin socket with --admin-socket",
                  path));
}

absl::StatusOr<std::unique_ptr<admin::Admin::Stub>> Connect(
    const std::string& path) {
  SLUICE_RETURN_IF_ERROR(CheckSocket(path));
  const std::string absolute = std::filesystem::absolute(path).string();
  return admin::Admin::NewStub(grpc::CreateChannel(
      "unix:" + absolute, grpc::InsecureChannelCredentials()));
}

// Both number their codes alike.
absl::Status ToAbsl(const grpc::Status& status, const std::string& path) {
  if (status.ok()) return absl::OkStatus();
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(
        fmt::format("sluiced does not answer at {} ({} s): is it stopped?",
                    path, kDeadline.count()));
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
}

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + kDeadline);
}

// This user's name; through sudo, whose it was before.
std::string OwnName() {
  const passwd* entry = getpwuid(getuid());
  const std::string name =
      entry != nullptr ? entry->pw_name : std::to_string(getuid());
  const char* before = std::getenv("SUDO_USER");
  return before != nullptr ? fmt::format("{} ({})", name, before) : name;
}

}  // namespace

std::string AdminSocketOf(const std::string& session_socket) {
  return std::filesystem::path(session_socket)
      .replace_filename("admin.sock")
      .string();
}

absl::StatusOr<std::string> ReadStatus(const std::string& admin_socket) {
  SLUICE_ASSIGN_OR_RETURN(const auto stub, Connect(admin_socket));
  grpc::ClientContext context;
  SetDeadline(context);
  admin::StatusReply reply;
  SLUICE_RETURN_IF_ERROR(ToAbsl(
      stub->Status(&context, admin::StatusRequest(), &reply), admin_socket));
  return reply.json();
}

absl::StatusOr<BudgetLimits> SetBudget(const std::string& admin_socket,
                                       const BudgetTarget& target,
                                       const BudgetLimits& limits) {
  SLUICE_ASSIGN_OR_RETURN(const auto stub, Connect(admin_socket));
  admin::SetBudgetRequest request;
  if (target.uid) {
    request.set_uid(*target.uid);
    request.set_cgroup(target.cgroup);
  } else {
    request.set_job(target.job);
  }
  request.set_by(OwnName());
  if (limits.gpu) request.set_gpu_bytes(limits.gpu->size());
  if (limits.host) request.set_host_bytes(limits.host->size());
  grpc::ClientContext context;
  SetDeadline(context);
  admin::SetBudgetReply reply;
  SLUICE_RETURN_IF_ERROR(
      ToAbsl(stub->SetBudget(&context, request, &reply), admin_socket));
  return BudgetLimits{Bytes(static_cast<int64_t>(reply.gpu_bytes())),
                      Bytes(static_cast<int64_t>(reply.host_bytes()))};
}

absl::Status Reserve(const std::string& admin_socket,
                     const Reservation& reservation) {
  SLUICE_ASSIGN_OR_RETURN(const auto stub, Connect(admin_socket));
  admin::ReserveRequest request;
  request.set_uid(reservation.uid);
  request.set_cgroup(reservation.cgroup);
  if (reservation.gpu) request.set_gpu(*reservation.gpu);
  if (reservation.numa) request.set_numa(*reservation.numa);
  request.set_bytes(reservation.bytes.size());
  request.set_by(OwnName());
  grpc::ClientContext context;
  SetDeadline(context);
  admin::ReserveReply reply;
  return ToAbsl(stub->Reserve(&context, request, &reply), admin_socket);
}

absl::StatusOr<uint32_t> Drain(const std::string& admin_socket,
                               const std::string& reason) {
  SLUICE_ASSIGN_OR_RETURN(const auto stub, Connect(admin_socket));
  admin::DrainRequest request;
  request.set_by(OwnName());
  request.set_reason(reason);
  grpc::ClientContext context;
  SetDeadline(context);
  admin::DrainReply reply;
  SLUICE_RETURN_IF_ERROR(
      ToAbsl(stub->Drain(&context, request, &reply), admin_socket));
  return reply.ranks();
}

absl::Status Undrain(const std::string& admin_socket) {
  SLUICE_ASSIGN_OR_RETURN(const auto stub, Connect(admin_socket));
  grpc::ClientContext context;
  SetDeadline(context);
  admin::UndrainReply reply;
  return ToAbsl(stub->Undrain(&context, admin::UndrainRequest(), &reply),
                admin_socket);
}

absl::StatusOr<uint32_t> Evict(const std::string& admin_socket,
                               const Eviction& eviction) {
  SLUICE_ASSIGN_OR_RETURN(const auto stub, Connect(admin_socket));
  admin::EvictRequest request;
  request.set_job(eviction.job);
  if (eviction.uid) request.set_uid(*eviction.uid);
  request.set_kill(eviction.kill);
  request.set_reason(eviction.reason);
  grpc::ClientContext context;
  SetDeadline(context);
  admin::EvictReply reply;
  SLUICE_RETURN_IF_ERROR(
      ToAbsl(stub->Evict(&context, request, &reply), admin_socket));
  return reply.sessions();
}

}  // namespace sluice::ctl

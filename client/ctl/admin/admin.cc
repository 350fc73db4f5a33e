#include "client/ctl/admin/admin.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <pwd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "proto/admin/admin.grpc.pb.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

using admin::Admin;

constexpr std::chrono::seconds kDeadline{5};
constexpr std::chrono::milliseconds kPause{20};

// Explains what gRPC would report as "failed to connect to all addresses".
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

// A protobuf string is UTF-8, or the call fails without a reason.
absl::Status CheckName(const char* what, const std::string& name) {
  if (Printable(name) == name) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("no {} is called '{}'", what, Printable(name)));
}

// gRPC's message if it did not execute a call because all threads were busy.
constexpr const char* kServerIsBusy = "Server Threadpool Exhausted";

enum class Repeat { kHarmless, kNot };

// Makes one call, also if the daemon dies and another one takes its place. A
// call that was not sent waits for the next daemon. A call that was sent is
// sent again if that is harmless.
template <typename Request, typename Reply>
absl::StatusOr<Reply> Call(const std::string& path,
                           grpc::Status (Admin::Stub::*method)(
                               grpc::ClientContext*, const Request&, Reply*),
                           const Request& request,
                           Repeat repeat = Repeat::kHarmless) {
  SLUICE_RETURN_IF_ERROR(CheckSocket(path));
  const std::string absolute = std::filesystem::absolute(path).string();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  Admin::Stub stub(grpc::CreateCustomChannel(
      "unix:" + absolute, grpc::InsecureChannelCredentials(), arguments));
  const auto deadline = std::chrono::system_clock::now() + kDeadline;
  while (true) {
    grpc::ClientContext context;
    Reply reply;
    context.set_deadline(deadline);
    // Waits for a connection, so Unavailable means that the call was sent.
    context.set_wait_for_ready(true);
    const grpc::Status status = (stub.*method)(&context, request, &reply);
    const grpc::StatusCode code = status.error_code();
    const bool busy = code == grpc::StatusCode::RESOURCE_EXHAUSTED &&
                      status.error_message() == kServerIsBusy;
    if (status.ok()) return reply;
    if (code == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return absl::DeadlineExceededError(
          fmt::format("sluiced does not answer at {} ({} s): is it stopped?",
                      path, kDeadline.count()));
    }
    if (!busy && code != grpc::StatusCode::UNAVAILABLE) {
      // gRPC and Abseil use the same numbers for their codes.
      return absl::Status(static_cast<absl::StatusCode>(code),
                          status.error_message());
    }
    if (!busy && repeat == Repeat::kNot) {
      return absl::UnavailableError(
          "sluiced ended before it answered: the outcome is unknown; see what "
          "holds with `sluicectl status`, and only then ask again");
    }
    std::this_thread::sleep_for(kPause);
  }
}

// Returns this user's name, and under sudo also that of sudo's caller.
std::string OwnName() {
  const passwd* entry = getpwuid(getuid());
  const std::string name =
      entry != nullptr ? entry->pw_name : std::to_string(getuid());
  const char* before = std::getenv("SUDO_USER");
  return Printable(before != nullptr ? fmt::format("{} ({})", name, before)
                                     : name);
}

}  // namespace

std::string AdminSocketOf(const std::string& session_socket) {
  return std::filesystem::path(session_socket).replace_filename("admin.sock");
}

absl::StatusOr<std::string> ReadStatus(const std::string& admin_socket) {
  SLUICE_ASSIGN_OR_RETURN(
      const auto reply,
      Call(admin_socket, &Admin::Stub::Status, admin::StatusRequest()));
  return reply.json();
}

absl::StatusOr<BudgetLimits> SetBudget(const std::string& admin_socket,
                                       const BudgetTarget& target,
                                       const BudgetLimits& limits) {
  SLUICE_RETURN_IF_ERROR(CheckName("cgroup", target.cgroup));
  SLUICE_RETURN_IF_ERROR(CheckName("job", target.job));
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
  SLUICE_ASSIGN_OR_RETURN(const auto reply,
                          Call(admin_socket, &Admin::Stub::SetBudget, request));
  return BudgetLimits{Bytes(static_cast<int64_t>(reply.gpu_bytes())),
                      Bytes(static_cast<int64_t>(reply.host_bytes()))};
}

absl::Status Reserve(const std::string& admin_socket,
                     const Reservation& reservation) {
  SLUICE_RETURN_IF_ERROR(CheckName("cgroup", reservation.cgroup));
  admin::ReserveRequest request;
  request.set_uid(reservation.uid);
  request.set_cgroup(reservation.cgroup);
  if (reservation.gpu) request.set_gpu(*reservation.gpu);
  if (reservation.numa) request.set_numa(*reservation.numa);
  request.set_bytes(reservation.bytes.size());
  request.set_by(OwnName());
  return Call(admin_socket, &Admin::Stub::Reserve, request).status();
}

absl::StatusOr<uint32_t> Drain(const std::string& admin_socket,
                               const std::string& reason) {
  admin::DrainRequest request;
  request.set_by(OwnName());
  request.set_reason(Printable(reason));
  SLUICE_ASSIGN_OR_RETURN(const auto reply,
                          Call(admin_socket, &Admin::Stub::Drain, request));
  return reply.ranks();
}

absl::Status Undrain(const std::string& admin_socket) {
  // Not repeated: the second call would be refused, as the node is no longer
  // drained.
  return Call(admin_socket, &Admin::Stub::Undrain, admin::UndrainRequest(),
              Repeat::kNot)
      .status();
}

absl::StatusOr<bool> KeepLinks(const std::string& admin_socket,
                               const std::map<std::string, LinkLimits>& links) {
  admin::KeepLinksRequest request;
  request.set_by(OwnName());
  for (const auto& [name, link] : links) {
    admin::KeepLinksRequest::Link* const to = request.add_links();
    to->set_name(name);
    to->set_h2d_bytes_per_second(link.h2d);
    to->set_d2h_bytes_per_second(link.d2h);
    to->set_both_bytes_per_second(link.both);
  }
  SLUICE_ASSIGN_OR_RETURN(const auto reply,
                          Call(admin_socket, &Admin::Stub::KeepLinks, request));
  return reply.holds();
}

absl::StatusOr<bool> ForgetLinks(const std::string& admin_socket) {
  // Not repeated: the second call would be refused, as no speeds are stored.
  SLUICE_ASSIGN_OR_RETURN(const auto reply,
                          Call(admin_socket, &Admin::Stub::ForgetLinks,
                               admin::ForgetLinksRequest(), Repeat::kNot));
  return reply.holds();
}

absl::StatusOr<Evicted> Evict(const std::string& admin_socket,
                              const Eviction& eviction) {
  SLUICE_RETURN_IF_ERROR(CheckName("job", eviction.job));
  admin::EvictRequest request;
  request.set_job(eviction.job);
  if (eviction.uid) request.set_uid(*eviction.uid);
  request.set_kill(eviction.kill);
  request.set_reason(Printable(eviction.reason));
  SLUICE_ASSIGN_OR_RETURN(
      const auto reply,
      Call(admin_socket, &Admin::Stub::Evict, request, Repeat::kNot));
  Evicted evicted = {.sessions = reply.sessions(), .processes = {}};
  if (reply.has_processes()) evicted.processes = reply.processes();
  return evicted;
}

}  // namespace sluice::ctl

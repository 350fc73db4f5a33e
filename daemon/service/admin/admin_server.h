// The administrators' gRPC service (proto/admin/admin.proto) on a unix socket.
// It only converts between gRPC's messages and `Administration`.
//
// Thread safety: serving and destruction from one thread.
#pragma once

#include <grpcpp/server.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/service/admin/administration.h"
#include "daemon/service/threads/task_thread.h"

namespace sluice::daemon {

// What to do if the socket cannot be made, for example in a full folder: refuse
// the start, or try again later. A daemon that took sessions over serves them
// even without this socket.
enum class NoAdminSocket { kRefuses, kIsTriedAgain };

// Serves gRPC on a few threads, to users that its socket's mode allows.
class AdminSocket {
 public:
  static constexpr absl::Duration kRetry = absl::Seconds(5);

  // Serves on `path` with mode 0660, replacing a stale socket. Internal: gRPC
  // cannot serve there. With kIsTriedAgain this error is logged, and serving is
  // tried again every kRetry.
  static absl::StatusOr<std::unique_ptr<AdminSocket>> Serve(
      const std::string& path, std::unique_ptr<grpc::Service> service,
      NoAdminSocket none);
  // Ends running calls within 200 ms, and removes the socket.
  ~AdminSocket();
  AdminSocket(const AdminSocket&) = delete;

 private:
  AdminSocket(std::string path, std::unique_ptr<grpc::Service> service);
  absl::Status TryServe();
  void TryLater();

  const std::string path_;
  const std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;  // used by the thread, if there is one
  std::unique_ptr<TaskThread> thread_;    // null: the first try succeeded
};

grpc::Status ToGrpc(const absl::Status& status);

// `administration` and what `render` needs must outlive the result.
absl::StatusOr<std::unique_ptr<AdminSocket>> ServeAdministrators(
    const std::string& path, Administration* administration,
    std::function<std::string(const Snapshot&)> render, NoAdminSocket none);

}  // namespace sluice::daemon

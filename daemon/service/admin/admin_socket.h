// Serves a gRPC service for administrators on a unix socket, on a few threads.
// The socket's mode decides which users are administrators.
//
// Thread safety: Serve and destruction from one thread.
#pragma once

#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "proto/base/mutex.h"

namespace sluice::daemon {

// What to do if the socket cannot be made, for example in a full folder: refuse
// the start, or try again later. A daemon that took sessions over serves them
// even without this socket.
enum class NoAdminSocket { kRefuses, kIsTriedAgain };

class AdminSocket {
 public:
  static constexpr absl::Duration kRetry = absl::Seconds(5);

  // Serves on `path` with mode 0660, replacing a stale socket. `service` must
  // outlive this object. Internal: gRPC cannot serve there. With kIsTriedAgain
  // this error is logged, and serving is tried again every kRetry.
  static absl::StatusOr<std::unique_ptr<AdminSocket>> Serve(
      const std::string& path, grpc::Service* service, NoAdminSocket none);
  // Ends running calls within 200 ms, and removes the socket.
  ~AdminSocket();
  AdminSocket(const AdminSocket&) = delete;

 private:
  AdminSocket(std::string path, grpc::Service* service)
      : path_(std::move(path)), service_(service) {}
  absl::Status TryServe();
  void TryAgain();

  const std::string path_;
  grpc::Service* const service_;
  std::unique_ptr<grpc::Server> server_;  // used by the thread, if there is one
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Converts a status; the codes are the same.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace sluice::daemon

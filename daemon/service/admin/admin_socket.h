// A gRPC service for administrators on a unix socket, on few threads of its
// own. Whoever may open the socket is an administrator.
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

// Where the socket cannot be made, as in a folder that is full. A daemon that
// took sessions over serves them all the same.
enum class NoAdminSocket { kRefuses, kIsTriedAgain };

class AdminSocket {
 public:
  static constexpr absl::Duration kRetry = absl::Seconds(5);

  // Serves at once on `path` with mode 0660, replacing a stale socket.
  // `service` outlives it. Internal: gRPC cannot. Or says so, and tries again
  // every kRetry.
  static absl::StatusOr<std::unique_ptr<AdminSocket>> Serve(
      const std::string& path, grpc::Service* service, NoAdminSocket none);
  // Ends what is being answered within 200 ms, and removes the socket.
  ~AdminSocket();
  AdminSocket(const AdminSocket&) = delete;

 private:
  AdminSocket(std::string path, grpc::Service* service)
      : path_(std::move(path)), service_(service) {}
  absl::Status TryServe();
  void TryAgain();

  const std::string path_;
  grpc::Service* const service_;
  std::unique_ptr<grpc::Server> server_;  // the thread's, while there is one
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// As gRPC says it; the codes are the same.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace sluice::daemon

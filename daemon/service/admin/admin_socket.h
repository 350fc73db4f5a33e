// A gRPC service for administrators on a unix socket, on few threads of its
// own. Whoever may open the socket is an administrator.
//
// Thread safety: Serve and destruction from one thread.
#pragma once

#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace sluice::daemon {

class AdminSocket {
 public:
  // Serves at once on `path` with mode 0660, replacing a stale socket.
  // `service` outlives it. Internal: gRPC cannot.
  static absl::StatusOr<std::unique_ptr<AdminSocket>> Serve(
      const std::string& path, grpc::Service* service);
  // Ends what is being answered within 200 ms, and removes the socket.
  ~AdminSocket();
  AdminSocket(const AdminSocket&) = delete;

 private:
  AdminSocket(std::string path, std::unique_ptr<grpc::Server> server)
      : path_(std::move(path)), server_(std::move(server)) {}

  const std::string path_;
  const std::unique_ptr<grpc::Server> server_;
};

// As gRPC says it; the codes are the same.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace sluice::daemon

// The administrators' gRPC service (proto/admin/admin.proto). It only converts
// between gRPC's messages and `Administration`.
//
// Thread safety: Start and destruction from one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/service/admin/admin_socket.h"
#include "daemon/service/admin/administration.h"

namespace sluice::daemon {

class AdminServer {
 public:
  // Serves on the unix socket `path`, as AdminSocket does. `administration` and
  // what `render` needs must outlive the server.
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(
      const std::string& path, Administration* administration,
      std::function<std::string(const Snapshot&)> render, NoAdminSocket none);
  ~AdminServer();

 private:
  struct Impl;
  explicit AdminServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::daemon

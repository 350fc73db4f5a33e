#include "daemon/service/admin/admin_socket.h"

#include <fmt/format.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>

#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

constexpr int kMaxThreads = 8;
constexpr int kMaxMessageBytes = 4 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<AdminSocket>> AdminSocket::Serve(
    const std::string& path, grpc::Service* service) {
  // The lock on the runtime directory says that nobody serves it. It takes the
  // stale one's place at once: who asks in between finds one that refuses, and
  // asks again.
  const std::string fresh = path + ".new";
  unlink(fresh.c_str());
  grpc::ResourceQuota quota("admin");
  quota.SetMaxThreads(kMaxThreads);
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  builder.AddListeningPort("unix:" + fresh, grpc::InsecureServerCredentials());
  builder.RegisterService(service);
  // gRPC makes the socket; the mask keeps others out from its first moment.
  const mode_t before = umask(0117);
  auto server = builder.BuildAndStart();
  umask(before);
  if (server == nullptr) {
    return absl::InternalError(
        fmt::format("cannot serve administrators on {}", path));
  }
  if (rename(fresh.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(errno, "serve administrators on " + path);
  }
  return std::unique_ptr<AdminSocket>(new AdminSocket(path, std::move(server)));
}

AdminSocket::~AdminSocket() {
  server_->Shutdown(std::chrono::system_clock::now() +
                    std::chrono::milliseconds(200));
  unlink(path_.c_str());
}

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message()));
}

}  // namespace sluice::daemon

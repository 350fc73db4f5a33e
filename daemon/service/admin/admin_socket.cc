#include "daemon/service/admin/admin_socket.h"

#include <fmt/format.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <utility>

#include "daemon/service/log/log.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::daemon {
namespace {

constexpr int kMaxThreads = 8;
constexpr int kMaxMessageBytes = 4 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<AdminSocket>> AdminSocket::Serve(
    const std::string& path, grpc::Service* service, NoAdminSocket none) {
  auto socket = std::unique_ptr<AdminSocket>(new AdminSocket(path, service));
  const absl::Status served = socket->TryServe();
  if (served.ok()) return socket;
  if (none == NoAdminSocket::kRefuses) return served;
  WriteLog(
      LogLevel::kError,
      fmt::format("{}: sessions are served, and it is tried again every {}",
                  std::string(served.message()), FormatSpan(kRetry)));
  socket->thread_ = std::thread([raw = socket.get()] { raw->TryAgain(); });
  return socket;
}

absl::Status AdminSocket::TryServe() {
  // Makes the socket under another name and renames it, which replaces a stale
  // socket at once. The lock on the runtime directory excludes other daemons. A
  // client that connects before the rename is refused, and connects again.
  const std::string fresh = path_ + ".new";
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
  builder.RegisterService(service_);
  // gRPC makes the socket. With this mask, other users have no access from the
  // first moment on.
  const mode_t before = umask(0117);
  auto server = builder.BuildAndStart();
  umask(before);
  if (server == nullptr) {
    return absl::InternalError(fmt::format(
        "cannot serve administrators on {} (gRPC says why above)", path_));
  }
  if (rename(fresh.c_str(), path_.c_str()) != 0) {
    return ErrnoStatus(errno, "serve administrators on " + path_);
  }
  server_ = std::move(server);
  return absl::OkStatus();
}

void AdminSocket::TryAgain() {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      const auto next = CondVar::Deadline(kRetry);
      while (!stopping_ && changed_.WaitUntil(mutex_, next)) {
      }
      if (stopping_) return;
    }
    if (!TryServe().ok()) continue;
    WriteLog(LogLevel::kInfo, "administrators are served on " + path_);
    return;
  }
}

AdminSocket::~AdminSocket() {
  if (thread_.joinable()) {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    changed_.NotifyAll();
    thread_.join();
  }
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() +
                    std::chrono::milliseconds(200));
  unlink(path_.c_str());
}

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message()));
}

}  // namespace sluice::daemon

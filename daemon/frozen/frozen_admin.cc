#include "daemon/frozen/frozen_admin.h"

#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "daemon/service/admin/admin_socket.h"
#include "proto/admin/admin.grpc.pb.h"
#include "proto/base/status.h"
#include "proto/base/whole_io.h"

namespace sluice::daemon {
namespace {

absl::StatusOr<std::string> BytesOf(const UniqueFd& file) {
  struct stat of;
  if (fstat(file.get(), &of) != 0) return ErrnoStatus(errno, "see the state");
  return ReadAllAt(file.get(), static_cast<size_t>(of.st_size), "the state");
}

struct FrozenAdmin final : admin::Admin::Service {
  FrozenAdmin(absl::Status reason, UniqueFd file,
              std::vector<std::string> names)
      : why(std::move(reason)),
        state(std::move(file)),
        kept(std::move(names)) {}

  grpc::Status ShowState(grpc::ServerContext*, const admin::ShowStateRequest*,
                         admin::ShowStateReply* reply) override {
    if (!state) return ToGrpc(why);
    auto bytes = BytesOf(state);
    if (!bytes.ok()) return ToGrpc(bytes.status());
    reply->set_file(*std::move(bytes));
    reply->mutable_kept()->Assign(kept.begin(), kept.end());
    return grpc::Status::OK;
  }
  grpc::Status Status(grpc::ServerContext*, const admin::StatusRequest*,
                      admin::StatusReply*) override {
    return ToGrpc(why);
  }
  grpc::Status SetBudget(grpc::ServerContext*, const admin::SetBudgetRequest*,
                         admin::SetBudgetReply*) override {
    return ToGrpc(why);
  }
  grpc::Status Reserve(grpc::ServerContext*, const admin::ReserveRequest*,
                       admin::ReserveReply*) override {
    return ToGrpc(why);
  }
  grpc::Status Drain(grpc::ServerContext*, const admin::DrainRequest*,
                     admin::DrainReply*) override {
    return ToGrpc(why);
  }
  grpc::Status Undrain(grpc::ServerContext*, const admin::UndrainRequest*,
                       admin::UndrainReply*) override {
    return ToGrpc(why);
  }
  grpc::Status KeepLinks(grpc::ServerContext*, const admin::KeepLinksRequest*,
                         admin::KeepLinksReply*) override {
    return ToGrpc(why);
  }
  grpc::Status ForgetLinks(grpc::ServerContext*,
                           const admin::ForgetLinksRequest*,
                           admin::ForgetLinksReply*) override {
    return ToGrpc(why);
  }
  grpc::Status Evict(grpc::ServerContext*, const admin::EvictRequest*,
                     admin::EvictReply*) override {
    return ToGrpc(why);
  }

  const absl::Status why;
  const UniqueFd state;
  const std::vector<std::string> kept;
  std::unique_ptr<AdminSocket> socket;  // last: it calls the rest
};

}  // namespace

absl::StatusOr<std::shared_ptr<void>> ServeFrozenAdmin(
    const std::string& path, absl::Status why, UniqueFd state,
    std::vector<std::string> kept) {
  auto admin = std::make_shared<FrozenAdmin>(std::move(why), std::move(state),
                                             std::move(kept));
  SLUICE_ASSIGN_OR_RETURN(
      admin->socket,
      AdminSocket::Serve(path, admin.get(), NoAdminSocket::kIsTriedAgain));
  return admin;
}

}  // namespace sluice::daemon

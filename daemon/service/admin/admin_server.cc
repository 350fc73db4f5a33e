#include "daemon/service/admin/admin_server.h"

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
#include "daemon/state/state_file.h"
#include "proto/admin/admin.grpc.pb.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/wire.h"

namespace sluice::daemon {
namespace {

constexpr size_t kLongestName = 64;
constexpr size_t kLongestText = 256;
constexpr size_t kLongestPath = 4096;

// Converts a limit; 0 on the wire means "unlimited".
uint64_t ToWire(Bytes limit) {
  return limit == Limits::kUnlimited ? 0 : limit.size();
}

absl::StatusOr<Bytes> CheckedBytes(uint64_t bytes, const char* name) {
  if (bytes < uint64_t{1} << 60) return Bytes(static_cast<int64_t>(bytes));
  return absl::InvalidArgumentError(
      fmt::format("{} is {}, the limit is 2^60", name, bytes));
}

absl::StatusOr<Bytes> FromWire(uint64_t limit, const char* name) {
  if (limit == 0) return Limits::kUnlimited;
  return CheckedBytes(limit, name);
}

// Refuses a cgroup that cannot exist. Its path is not shortened like other
// texts, because a shorter path may name another one. "" means every cgroup.
absl::Status CheckCgroup(const std::string& cgroup) {
  if (cgroup.size() > kLongestPath) {
    return absl::InvalidArgumentError(
        fmt::format("cgroup has {} characters, the limit is {}", cgroup.size(),
                    kLongestPath));
  }
  if (cgroup.empty() || cgroup.starts_with('/')) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "no cgroup is called '{}': a path begins with /, as in /proc/PID/cgroup",
      PrintableLine(cgroup)));
}

template <typename T, typename Fill>
grpc::Status Answer(const absl::StatusOr<T>& result, Fill fill) {
  if (result.ok()) fill(*result);
  return ToGrpc(result.status());
}

std::string By(const auto& request) {
  return request.by().substr(0, kLongestName);
}

absl::StatusOr<BudgetChange> From(const admin::SetBudgetRequest& request) {
  BudgetChange change;
  change.who = By(request);
  if (request.target_case() == admin::SetBudgetRequest::kJob) {
    SLUICE_RETURN_IF_ERROR(wire::CheckJob(request.job()));
    change.target.job = request.job();
  } else if (request.target_case() == admin::SetBudgetRequest::kUid) {
    SLUICE_RETURN_IF_ERROR(CheckCgroup(request.cgroup()));
    change.target.uid = request.uid();
    change.target.cgroup = request.cgroup();
  }
  if (request.has_gpu_bytes()) {
    SLUICE_ASSIGN_OR_RETURN(change.gpu,
                            FromWire(request.gpu_bytes(), "gpu_bytes"));
  }
  if (request.has_host_bytes()) {
    SLUICE_ASSIGN_OR_RETURN(change.host,
                            FromWire(request.host_bytes(), "host_bytes"));
  }
  return change;
}

absl::StatusOr<ReservationChange> From(const admin::ReserveRequest& request) {
  if (request.pool_case() == admin::ReserveRequest::POOL_NOT_SET) {
    return absl::InvalidArgumentError(
        "memory of which pool? name a GPU or a NUMA node");
  }
  SLUICE_RETURN_IF_ERROR(CheckCgroup(request.cgroup()));
  SLUICE_ASSIGN_OR_RETURN(const Bytes bytes,
                          CheckedBytes(request.bytes(), "bytes"));
  const bool gpu = request.pool_case() == admin::ReserveRequest::kGpu;
  const PoolId pool = {gpu ? PoolKind::kGpu : PoolKind::kHost,
                       gpu ? request.gpu() : request.numa()};
  return ReservationChange{
      pool, {request.uid(), request.cgroup()}, bytes, By(request)};
}

struct AdminService final : admin::Admin::Service {
  using Context = grpc::ServerContext;

  AdminService(Administration* of,
               std::function<std::string(const Snapshot&)> json)
      : administration(of), render(std::move(json)) {}

  grpc::Status Status(Context*, const admin::StatusRequest*,
                      admin::StatusReply* reply) override {
    return Answer(administration->Read(), [&](const Snapshot& snapshot) {
      reply->set_json(render(snapshot));
    });
  }

  grpc::Status ShowState(Context*, const admin::ShowStateRequest*,
                         admin::ShowStateReply* reply) override {
    reply->set_version(kStateVersions.written);
    reply->set_oldest_reader(kStateVersions.oldest_reader);
    return Answer(administration->ReadRows(),
                  [&](const std::string& rows) { reply->set_rows(rows); });
  }

  grpc::Status SetBudget(Context*, const admin::SetBudgetRequest* request,
                         admin::SetBudgetReply* reply) override {
    return Apply(From(*request), [&](const auto& set) {
      reply->set_gpu_bytes(ToWire(set.limits.gpu));
      reply->set_host_bytes(ToWire(set.limits.host));
    });
  }

  grpc::Status Reserve(Context*, const admin::ReserveRequest* request,
                       admin::ReserveReply*) override {
    return Apply(From(*request), [](const auto&) {});
  }

  grpc::Status Drain(Context*, const admin::DrainRequest* request,
                     admin::DrainReply* reply) override {
    const DrainChange drain{daemon::Drain{
        By(*request), request->reason().substr(0, kLongestText), {}}};
    return Apply(drain, [&](const auto& drained) {
      reply->set_ranks(static_cast<uint32_t>(drained.ranks));
    });
  }

  grpc::Status Undrain(Context*, const admin::UndrainRequest*,
                       admin::UndrainReply*) override {
    return Apply(DrainChange{}, [](const auto&) {});
  }

  grpc::Status KeepLinks(Context*, const admin::KeepLinksRequest* request,
                         admin::KeepLinksReply* reply) override {
    MeasuredLinks measured;
    measured.by.who = By(*request);
    for (const auto& link : request->links()) {
      measured.links[link.name()] = {link.h2d_bytes_per_second(),
                                     link.d2h_bytes_per_second(),
                                     link.both_bytes_per_second()};
    }
    return Apply(LinksChange{std::move(measured)},
                 [&](const auto& kept) { reply->set_holds(!kept.links_wait); });
  }

  grpc::Status ForgetLinks(Context*, const admin::ForgetLinksRequest*,
                           admin::ForgetLinksReply* reply) override {
    return Apply(LinksChange{},
                 [&](const auto& left) { reply->set_holds(!left.links_wait); });
  }

  grpc::Status Evict(Context*, const admin::EvictRequest* request,
                     admin::EvictReply* reply) override {
    const absl::Status named = wire::CheckJob(request->job());
    if (!named.ok()) return ToGrpc(named);
    std::optional<uint32_t> uid;
    if (request->has_uid()) uid = request->uid();
    const std::string reason = request->reason().empty()
                                   ? "evicted by an administrator"
                                   : request->reason().substr(0, kLongestText);
    return Answer(
        administration->Evict(request->job(), uid, request->kill(), reason),
        [&](const Core::Evicted& evicted) {
          reply->set_sessions(static_cast<uint32_t>(evicted.sessions));
          reply->set_processes(static_cast<uint32_t>(evicted.processes));
        });
  }

  grpc::Status Apply(const absl::StatusOr<PolicyChange>& change, auto fill) {
    if (!change.ok()) return ToGrpc(change.status());
    return Answer(administration->Apply(*change), fill);
  }

  Administration* const administration;
  const std::function<std::string(const Snapshot&)> render;
};

constexpr int kMaxThreads = 8;
constexpr int kMaxMessageBytes = 4 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<AdminSocket>> ServeAdministrators(
    const std::string& path, Administration* administration,
    std::function<std::string(const Snapshot&)> render, NoAdminSocket none) {
  return AdminSocket::Serve(
      path, std::make_unique<AdminService>(administration, std::move(render)),
      none);
}

AdminSocket::AdminSocket(std::string path,
                         std::unique_ptr<grpc::Service> service)
    : path_(std::move(path)), service_(std::move(service)) {}

absl::StatusOr<std::unique_ptr<AdminSocket>> AdminSocket::Serve(
    const std::string& path, std::unique_ptr<grpc::Service> service,
    NoAdminSocket none) {
  auto socket =
      std::unique_ptr<AdminSocket>(new AdminSocket(path, std::move(service)));
  const absl::Status served = socket->TryServe();
  if (served.ok()) return socket;
  if (none == NoAdminSocket::kRefuses) return served;
  WriteLog(
      LogLevel::kError,
      fmt::format("{}: sessions are served, and it is tried again every {}",
                  std::string(served.message()), FormatSpan(kRetry)));
  socket->thread_ = std::make_unique<TaskThread>("admin");
  socket->TryLater();
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
  builder.RegisterService(service_.get());
  // gRPC makes the socket; with this mask other users never have access.
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

void AdminSocket::TryLater() {
  thread_->RunAfter(kRetry, [this] {
    if (!TryServe().ok()) return TryLater();
    WriteLog(LogLevel::kInfo, "administrators are served on " + path_);
  });
}

AdminSocket::~AdminSocket() {
  if (thread_ != nullptr) thread_->Finish(absl::InfiniteDuration());
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

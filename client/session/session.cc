#include "client/session/session.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "client/session/connection.h"
#include "client/session/mapping.h"
#include "client/session/welcome.h"
#include "kernels/device/cuda/nvidia.h"
#include "proto/base/clock.h"
#include "proto/base/peer_fault.h"
#include "proto/base/shortage.h"
#include "proto/base/simulated.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/plan/codec.h"
#include "proto/plan/validate.h"
#include "proto/wire.h"

namespace sluice::client {
namespace {

using Kind = SessionEvent::Kind;

// How long to wait for Free's answer, so that the next lease finds the memory.
constexpr absl::Duration kFreeTimeout = absl::Seconds(5);
// The wire's field has 32 bits of milliseconds.
constexpr absl::Duration kMostLeaseWait = absl::Hours(24 * 40);
constexpr size_t kMaxNoteBytes = 512;  // limit of PlanTaken.note

absl::Status WhyNoPlan(const wire::PlanFailed& failed) {
  absl::Status why = FromDaemon(absl::FailedPreconditionError(failed.reason()),
                                failed.shortage());
  return failed.peer_left() ? CausedByPeer(std::move(why)) : why;
}

// Maps a shared page of grants, which the last copy of the pointer unmaps. A
// forked child does not inherit it. InvalidArgument: the file is too small.
absl::StatusOr<std::shared_ptr<void>> MapPage(const UniqueFd& fd, size_t size,
                                              int protection) {
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "a grant page");
  // Reading beyond the end of the file would raise SIGBUS.
  if (static_cast<size_t>(info.st_size) < size) {
    return absl::InvalidArgumentError(fmt::format(
        "a grant page has {} bytes and needs {}: install the same version of "
        "sluiced and libsluice",
        info.st_size, size));
  }
  void* page = mmap(nullptr, size, protection, MAP_SHARED, fd.get(), 0);
  if (page == MAP_FAILED) return ErrnoStatus(errno, "map a grant page");
  madvise(page, size, MADV_DONTFORK);
  return std::shared_ptr<void>(page, [size](void* p) { munmap(p, size); });
}

// Delivers events to the session's handler, and keeps events that arrive while
// no handler is set. The handler is called under the lock, so `Set` waits until
// a running handler has returned. Thread safety: safe.
class EventRelay {
 public:
  void Set(Session::EventHandler handler) {
    const MutexLock lock(mutex_);
    handler_ = std::move(handler);
    if (!handler_) return;
    for (const SessionEvent& event : std::exchange(early_, {})) handler_(event);
  }
  void Deliver(const SessionEvent& event) {
    const MutexLock lock(mutex_);
    if (handler_) {
      handler_(event);
    } else {
      early_.push_back(event);
    }
  }

 private:
  Mutex mutex_;
  Session::EventHandler handler_ ABSL_GUARDED_BY(mutex_);
  std::vector<SessionEvent> early_ ABSL_GUARDED_BY(mutex_);
};

// Holds the plan that a rank waits for, and the newest changed plan. Thread
// safety: one thread waits; any thread may call the other methods.
class PlanInbox {
 public:
  using PlanOr = absl::StatusOr<plan::NodePlan>;

  // Forgets earlier answers, so that the next Put answers the next profile.
  void Clear() {
    const MutexLock lock(mutex_);
    plan_.reset();
  }
  // The first answer counts: a plan stays valid if a peer dies later. Aborted,
  // which asks to submit the profile again, gives way to any other answer.
  void Put(PlanOr plan) {
    {
      const MutexLock lock(mutex_);
      if (!plan_ || absl::IsAborted(plan_->status())) plan_ = std::move(plan);
    }
    changed_.NotifyAll();
  }
  PlanOr Await(absl::Duration timeout) {
    const auto deadline = CondVar::Deadline(timeout);
    const MutexLock lock(mutex_);
    while (!plan_ && changed_.WaitUntil(mutex_, deadline)) {
    }
    if (plan_) return *std::exchange(plan_, std::nullopt);
    return absl::DeadlineExceededError(fmt::format(
        "no plan after {}: have all local ranks of the job sent a profile?",
        FormatSpan(timeout)));
  }

  void PutChanged(plan::NodePlan plan) {
    auto shared = std::make_shared<const plan::NodePlan>(std::move(plan));
    const MutexLock lock(mutex_);
    if (shared->id != dropped_) changed_plan_ = std::move(shared);
  }
  std::shared_ptr<const plan::NodePlan> changed() const {
    const MutexLock lock(mutex_);
    return changed_plan_;
  }
  // Forgets `plan`, even if it arrives again, but no newer one.
  void DropChanged(PlanId plan) {
    const MutexLock lock(mutex_);
    dropped_ = plan;
    if (changed_plan_ && changed_plan_->id == plan) changed_plan_.reset();
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::optional<PlanOr> plan_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const plan::NodePlan> changed_plan_ ABSL_GUARDED_BY(mutex_);
  PlanId dropped_ ABSL_GUARDED_BY(mutex_);
};

class LeasedRegion final : public Region {
 public:
  LeasedRegion(std::shared_ptr<Connection> connection,
               std::shared_ptr<device::Driver> driver)
      : connection_(std::move(connection)), driver_(std::move(driver)) {}
  ~LeasedRegion() override {
    mapping_.reset();
    for (const LeaseId lease : leases_) {
      wire::Request request;
      request.mutable_free()->set_lease_id(lease.value());
      // After an error there is no daemon, and the lease has ended.
      connection_->Call(request, {}, kFreeTimeout).status().IgnoreError();
    }
  }

  // Makes the region free the lease on destruction, also after errors.
  void Add(LeaseId lease, std::vector<Extent> extents) {
    leases_.push_back(lease);
    std::move(extents.begin(), extents.end(), std::back_inserter(extents_));
  }
  absl::Status Map(DeviceIndex device) {
    SLUICE_ASSIGN_OR_RETURN(mapping_,
                            Mapping::Make(driver_.get(), device, extents_));
    extents_.clear();
    return absl::OkStatus();
  }

  std::byte* data() const override { return mapping_->data(); }
  Bytes size() const override { return mapping_->size(); }

 private:
  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<device::Driver> driver_;
  std::vector<LeaseId> leases_;
  std::vector<Extent> extents_;  // kept until they are mapped
  std::unique_ptr<Mapping> mapping_;
};

wire::Request HelloOf(const SessionOptions& options) {
  wire::Request request;
  wire::Hello* hello = request.mutable_hello();
  hello->set_protocol(wire::kProtocols.newest);
  hello->set_oldest_protocol(wire::kProtocols.oldest);
  hello->set_job(options.job);
  hello->set_rank(static_cast<uint32_t>(options.rank.value()));
  hello->set_world_size(static_cast<uint32_t>(options.world_size));
  hello->set_local_ranks(static_cast<uint32_t>(options.local_ranks));
  hello->set_gpu(static_cast<uint32_t>(options.gpu.value()));
  return request;
}

class SessionImpl final : public Session {
 public:
  explicit SessionImpl(const SessionOptions& options) : options_(options) {}
  ~SessionImpl() override {
    if (gate_) gate_->Detach();
    if (connection_) connection_->Close();
  }

  absl::Status Start();
  NodeLimits limits() const override {
    const MutexLock lock(limits_mutex_);
    return welcome_.limits;
  }
  device::Driver& driver() override { return *driver_; }
  GrantGate& grants() override { return *gate_; }
  absl::Status MeasureOutside() override;
  absl::StatusOr<std::unique_ptr<Region>> LeaseGpu(Bytes size,
                                                   Wait wait) override {
    return Lease(device::Placement::Gpu(options_.gpu), size, wait);
  }
  absl::StatusOr<std::unique_ptr<Region>> LeaseHost(Bytes size,
                                                    Wait wait) override {
    return Lease(device::Placement::Host(welcome_.limits.numa), size, wait);
  }
  absl::StatusOr<plan::NodePlan> Plan(const plan::RankProfile& profile,
                                      absl::Duration timeout) override;
  std::shared_ptr<const plan::NodePlan> ChangedPlan() override {
    return inbox_.changed();
  }
  absl::Status AnswerChange(PlanId plan, bool taken,
                            const std::string& note) override {
    inbox_.DropChanged(plan);
    wire::Request request;
    wire::PlanTaken* out = request.mutable_plan_taken();
    out->set_plan_id(plan.value());
    out->set_taken(taken);
    // Text that is not UTF-8 would end the session.
    out->set_note(Printable(note.substr(0, kMaxNoteBytes)));
    return connection_->Post(request);
  }
  absl::Status Report(const StepReport& report) override;
  void OnEvent(EventHandler handler) override {
    relay_.Set(std::move(handler));
  }

 private:
  absl::StatusOr<std::unique_ptr<Region>> Lease(device::Placement where,
                                                Bytes size, Wait wait);
  absl::Status LeaseInto(LeasedRegion& region, device::Placement where,
                         Bytes size, absl::Duration wait);
  // Leases from all NUMA nodes, the GPU's first. Returns `refused` if they do
  // not have `size` together.
  absl::Status LeaseOfAllNodes(LeasedRegion& region, Bytes size,
                               const absl::Status& refused);
  // Reads the GPU's use by all processes. Creates this process's CUDA context.
  absl::StatusOr<wire::Request> UseOfGpu() {
    SLUICE_ASSIGN_OR_RETURN(
        const device::MemoryUse seen,
        driver_->Usage(device::Placement::Gpu(welcome_.limits.device)));
    wire::Request request;
    request.mutable_gpu_use()->set_used_bytes(seen.used.size());
    return request;
  }
  // Submits the profile and waits for its plan, even if a daemon takes over.
  absl::StatusOr<plan::NodePlan> AskForPlan(plan::RankProfile profile,
                                            absl::Duration timeout);
  // Ignores the plan if a profile has no reply yet: the plan is that of an
  // earlier profile, and the connection sends the profile again.
  void OnTakenOver(const wire::Message& message) {
    const wire::TakenOver& told = message.packet.event().taken_over();
    if (shared_gate_ == nullptr) return;  // Start has not returned: no plan yet
    if (connection_->Awaits(wire::Request::kSubmitProfile)) return;
    inbox_.Put(
        told.plan_id() != 0
            ? ReadPlan(message.fds[0])
            : absl::AbortedError("another daemon took over: ask it again"));
  }
  void OnWireEvent(wire::Message message);
  void OnChanged(PlanId id, const wire::Message& message);
  void OnGone(const std::string& reason) {
    gone_ = true;
    if (GrantGate* gate = shared_gate_) gate->Detach();
    inbox_.Put(absl::UnavailableError(reason));
    relay_.Deliver({Kind::kDisconnected, reason});
  }

  const SessionOptions options_;
  const MonotonicClock clock_;
  Welcome welcome_;  // filled by Start; later only the GPU's limits change
  std::shared_ptr<device::Driver> driver_;
  std::shared_ptr<void> limit_page_, use_page_;  // mapped while the gate lives
  std::unique_ptr<GrantGate> gate_;
  // The gate for the receiving thread; null until Start has made the gate.
  std::atomic<GrantGate*> shared_gate_{nullptr};
  std::atomic<bool> gone_{false};
  EventRelay relay_;
  PlanInbox inbox_;
  mutable Mutex limits_mutex_;  // guards the GPU's limits of welcome_
  Mutex report_mutex_;
  StepTotals totals_ ABSL_GUARDED_BY(report_mutex_);
  // How long each lease since the last report took to map.
  std::vector<double> map_seconds_ ABSL_GUARDED_BY(report_mutex_);
  Mutex plan_mutex_;  // admits one Plan at a time, as the inbox holds one
  std::shared_ptr<Connection> connection_;
};

absl::Status SessionImpl::Start() {
  const wire::Request hello = HelloOf(options_);
  SLUICE_RETURN_IF_ERROR(wire::CheckFields(hello));
  SLUICE_ASSIGN_OR_RETURN(
      Connection::Greeted greeted,
      Connection::Greet(
          options_.socket, hello,
          [&] {
            return wire::OpenGpuNodes(
                options_.socket, options_.gpu,
                device::NvidiaDeviceNode(options_.gpu_uuid));
          },
          [this](wire::Message m) { OnWireEvent(std::move(m)); },
          [this](const std::string& reason) { OnGone(reason); }));
  connection_ = std::move(greeted.connection);
  const std::vector<wire::Message>& reply = greeted.answer;
  SLUICE_ASSIGN_OR_RETURN(welcome_, ReadWelcome(reply[0], options_.gpu));
  if (welcome_.kept) connection_->SetKept();
  // With several local ranks, other ranks may need this memory or count it too.
  if (options_.local_ranks == 1) {
    welcome_.limits.host_free += welcome_.borrowable;
  }
  SLUICE_ASSIGN_OR_RETURN(driver_, OpenDriver(welcome_, reply[0]));
  SLUICE_ASSIGN_OR_RETURN(welcome_.limits.device,
                          FindDevice(*driver_, welcome_));
  SLUICE_RETURN_IF_ERROR(CheckHostMemory(*driver_, welcome_));
  SLUICE_RETURN_IF_ERROR(MeasureOutside());
  SLUICE_ASSIGN_OR_RETURN(
      limit_page_, MapPage(reply[0].fds[0], sizeof(GrantLimits), PROT_READ));
  SLUICE_ASSIGN_OR_RETURN(use_page_, MapPage(reply[0].fds[1], sizeof(GrantUse),
                                             PROT_READ | PROT_WRITE));
  gate_ = std::make_unique<GrantGate>(
      static_cast<const GrantLimits*>(limit_page_.get()), welcome_.grant_slot,
      static_cast<GrantUse*>(use_page_.get()), &clock_);
  shared_gate_ = gate_.get();
  if (gone_) gate_->Detach();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Region>> SessionImpl::Lease(
    device::Placement where, Bytes size, Wait wait) {
  if (size <= Bytes(0)) {
    return absl::InvalidArgumentError(
        fmt::format("a lease of {} bytes: ask for at least one", size.count()));
  }
  auto region = std::make_unique<LeasedRegion>(connection_, driver_);
  size = RoundUp(size, welcome_.limits.granularity);
  absl::Status leased =
      LeaseInto(*region, where, size, wait.value_or(options_.lease_wait));
  if (ShortageOf(leased) == Shortage::kHostMemory && welcome_.numa_nodes > 1) {
    leased = LeaseOfAllNodes(*region, size, leased);
  }
  SLUICE_RETURN_IF_ERROR(leased);
  const absl::Time start = clock_.Now();
  SLUICE_RETURN_IF_ERROR(region->Map(welcome_.limits.device));
  const MutexLock lock(report_mutex_);
  if (map_seconds_.size() < wire::kMaxMaps) {
    map_seconds_.push_back(absl::ToDoubleSeconds(clock_.Now() - start));
  }
  return region;
}

absl::Status SessionImpl::LeaseInto(LeasedRegion& region,
                                    device::Placement where, Bytes size,
                                    absl::Duration most) {
  const bool gpu = where.kind == device::Placement::Kind::kGpu;
  wire::Request request;
  wire::Lease* lease = request.mutable_lease();
  lease->set_kind(gpu ? wire::Lease::GPU : wire::Lease::HOST);
  lease->set_ordinal(static_cast<uint32_t>(where.ordinal));
  lease->set_bytes(size.size());
  // Rounded up, so that less than a millisecond is still a wait.
  lease->set_wait_ms(static_cast<uint32_t>(
      absl::ToInt64Milliseconds(absl::Ceil(most, absl::Milliseconds(1)))));
  SLUICE_ASSIGN_OR_RETURN(
      auto parts,
      connection_->Call(request, {}, options_.answer_timeout + most));
  if (gpu) where = device::Placement::Gpu(welcome_.limits.device);
  std::vector<Extent> extents;
  for (wire::Message& part : parts) {
    const wire::Granted& granted = part.packet.reply().granted();
    for (int i = 0; i < granted.extent_bytes_size(); ++i) {
      extents.push_back({std::move(part.fds[static_cast<size_t>(i)]),
                         Bytes(static_cast<int64_t>(granted.extent_bytes(i))),
                         where});
    }
  }
  region.Add(LeaseId(parts[0].packet.reply().granted().lease_id()),
             std::move(extents));
  return absl::OkStatus();
}

absl::Status SessionImpl::LeaseOfAllNodes(LeasedRegion& region, Bytes size,
                                          const absl::Status& refused) {
  // A refusal does not state how much memory there is, so halves are tried.
  const Bytes unit = welcome_.limits.granularity;
  const Bytes least = RoundUp(size / 32, unit);
  for (uint64_t i = 0; i < welcome_.numa_nodes; ++i) {
    const NumaIndex node((welcome_.limits.numa.value() + i) %
                         welcome_.numa_nodes);
    for (Bytes piece = size; piece > Bytes(0);) {
      const absl::Status leased = LeaseInto(
          region, device::Placement::Host(node), piece, absl::ZeroDuration());
      if (leased.ok()) {
        size -= piece;
        if (size == Bytes(0)) return leased;
        piece = std::min(piece, size);
      } else if (ShortageOf(leased) != Shortage::kHostMemory) {
        return leased;
      } else {
        piece = piece > least ? std::max(RoundUp(piece / 2, unit), least)
                              : Bytes(0);
      }
    }
  }
  return refused;
}

// Without GpuUse a lease could take the memory of this process's context, which
// the daemon has not measured yet. On sim there is no such memory.
absl::Status SessionImpl::MeasureOutside() {
  if (IsSimulated(welcome_.limits.driver)) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const wire::Request request, UseOfGpu());
  const auto reply = connection_->Call(request);
  // An older daemon does not know GpuUse and measures within half a second.
  if (absl::IsUnimplemented(reply.status())) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(reply.status());
  const wire::Noted& noted = reply->front().packet.reply().noted();
  const MutexLock lock(limits_mutex_);
  if (noted.has_gpu()) SetGpuPool(noted.gpu(), welcome_.limits);
  return absl::OkStatus();
}

absl::StatusOr<plan::NodePlan> SessionImpl::Plan(
    const plan::RankProfile& profile, absl::Duration timeout) {
  const MutexLock lock(plan_mutex_);
  SLUICE_ASSIGN_OR_RETURN(plan::NodePlan plan, AskForPlan(profile, timeout));
  if (!plan.infeasible.empty()) return plan;
  const plan::RankPlan* part = plan::PartOf(plan, profile);
  if (part == nullptr) {
    return absl::InternalError(
        fmt::format("plan {} has no part for rank {}, it has {} ranks",
                    plan.id.value(), profile.rank.value(), plan.ranks.size()));
  }
  SLUICE_RETURN_IF_ERROR(plan::ValidateRankPlan(profile, *part));
  return plan;
}

absl::StatusOr<plan::NodePlan> SessionImpl::AskForPlan(
    plan::RankProfile profile, absl::Duration timeout) {
  const absl::Time deadline = clock_.Now() + timeout;
  // Sets the daemon's index, which a caller that named a UUID does not know.
  profile.gpu = options_.gpu;
  wire::Request request;
  request.mutable_submit_profile();
  for (;;) {
    std::vector<UniqueFd> fds(1);
    SLUICE_ASSIGN_OR_RETURN(
        fds[0], wire::ToMemfd("sluice-profile", plan::Encode(profile)));
    // Cleared last, as a takeover until now concerns an earlier profile.
    inbox_.Clear();
    SLUICE_RETURN_IF_ERROR(connection_->Call(request, std::move(fds)).status());
    auto plan = inbox_.Await(deadline - clock_.Now());
    if (!absl::IsAborted(plan.status())) return plan;
  }
}

absl::Status SessionImpl::Report(const StepReport& report) {
  StepReport numbered = report;
  numbered.totals = {};
  // A bad figure is refused here, because it would stay in the sums.
  wire::Request request;
  wire::StepReport* out = request.mutable_step_report();
  wire::ToWire(numbered, out);
  SLUICE_RETURN_IF_ERROR(wire::CheckFields(request));
  // Held until the report is sent, so that reports go out in the sums' order.
  const MutexLock lock(report_mutex_);
  numbered.totals = Plus(totals_, report);
  wire::ToWire(numbered, out);
  out->mutable_map_seconds()->Add(map_seconds_.begin(), map_seconds_.end());
  SLUICE_RETURN_IF_ERROR(wire::CheckFields(request));
  totals_ = numbered.totals;
  // Posted, because no step waits for the daemon.
  const absl::Status sent = connection_->Post(request);
  if (sent.ok()) map_seconds_.clear();
  // The first step made communicators and the like. The daemon sees their bytes
  // by itself, but not which process holds them.
  if (totals_.reports == 1 && !IsSimulated(welcome_.limits.driver)) {
    const auto use = UseOfGpu();
    if (use.ok()) connection_->Post(*use).IgnoreError();
  }
  return sent;
}

void SessionImpl::OnWireEvent(wire::Message message) {
  const wire::Event& event = message.packet.event();
  switch (event.body_case()) {
    case wire::Event::kPeerDied: {
      const wire::PeerDied& died = event.peer_died();
      const std::string detail = fmt::format(
          "rank {} of job {}: {}", died.rank(), died.job(), died.reason());
      inbox_.Put(CausedByPeer(absl::UnavailableError(
          fmt::format("no plan will come, a peer is gone: {}", detail))));
      return relay_.Deliver({Kind::kPeerDied, detail});
    }
    case wire::Event::kEvicted:
      inbox_.Put(absl::UnavailableError(
          fmt::format("evicted: {}", event.evicted().reason())));
      return relay_.Deliver({Kind::kEvicted, event.evicted().reason()});
    case wire::Event::kPlanReady:
      return inbox_.Put(ReadPlan(message.fds[0]));
    case wire::Event::kPlanFailed:
      return inbox_.Put(WhyNoPlan(event.plan_failed()));
    case wire::Event::kPlanChanged:
      return OnChanged(PlanId(event.plan_changed().plan_id()), message);
    case wire::Event::kTakenOver:
      return OnTakenOver(message);
    case wire::Event::kShuttingDown:
      return relay_.Deliver(
          {Kind::kShuttingDown, event.shutting_down().reason()});
    case wire::Event::kLeaseProgress:  // handled by Connection
    case wire::Event::BODY_NOT_SET:
      return;  // an unknown event of a newer daemon
  }
}

// Offers the plan to the rank, or answers "not taken" for the rank.
void SessionImpl::OnChanged(PlanId id, const wire::Message& message) {
  if (shared_gate_ == nullptr) return;  // Start has not returned: no plan yet
  auto plan = ReadPlan(message.fds[0]);
  if (!plan.ok() || !options_.takes_changes) {
    const std::string why =
        plan.ok()
            ? "this rank takes no changes"
            : "it cannot be read: " + std::string(plan.status().message());
    return AnswerChange(id, /*taken=*/false, why).IgnoreError();
  }
  inbox_.PutChanged(*std::move(plan));
  relay_.Deliver({Kind::kPlanChanged, fmt::format("plan {}", id.value())});
}

// Finds the daemon's GPU by `gpu_uuid` or, if empty, by `gpu`, and sets both.
absl::Status FindGpu(SessionOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const auto gpus, ListGpus(options.socket));
  const std::string uuid = options.gpu_uuid;
  std::string has;
  for (const GpuState& gpu : gpus) {
    if (uuid.empty() ? gpu.index == options.gpu : gpu.uuid == uuid) {
      options.gpu = gpu.index;
      options.gpu_uuid = gpu.uuid;
      return absl::OkStatus();
    }
    has += (has.empty() ? "" : ", ") + gpu.uuid;
  }
  // The daemon will refuse the number.
  if (uuid.empty()) return absl::OkStatus();
  return absl::NotFoundError(fmt::format(
      "{} is not among the {} GPUs of the daemon at {} ({}): start that daemon "
      "where this GPU is visible, or use a daemon that serves it",
      uuid, gpus.size(), options.socket, has));
}

}  // namespace

std::string DefaultSocket() {
  const char* named = std::getenv("SLUICE_SOCKET");
  return named != nullptr && *named != '\0' ? named
                                            : "/run/sluice/session.sock";
}

absl::StatusOr<std::unique_ptr<Session>> Session::Open(
    const SessionOptions& options) {
  if (options.world_size < 1 || options.local_ranks < 1) {
    return absl::InvalidArgumentError(fmt::format(
        "a session with world_size {}, local_ranks {}: both must be at least 1",
        options.world_size, options.local_ranks));
  }
  if (options.lease_wait < absl::ZeroDuration() ||
      options.lease_wait > kMostLeaseWait) {
    return absl::InvalidArgumentError(fmt::format(
        "a session whose leases wait {}: ask for 0 to {}; longest_wait_s in "
        "[quota] may allow less",
        FormatSpan(options.lease_wait), FormatSpan(kMostLeaseWait)));
  }
  SessionOptions chosen = options;
  if (chosen.socket.empty()) chosen.socket = DefaultSocket();
  // The driver's /proc maps the GPU's UUID to its device node (OpenGpuNodes).
  if (!options.gpu_uuid.empty() ||
      access("/proc/driver/nvidia/gpus", R_OK) == 0) {
    SLUICE_RETURN_IF_ERROR(FindGpu(chosen));
  }
  auto session = std::make_unique<SessionImpl>(chosen);
  SLUICE_RETURN_IF_ERROR(session->Start());
  return session;
}

}  // namespace sluice::client

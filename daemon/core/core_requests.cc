// Requests: executed once each, and the small ones.
#include <fmt/format.h>

#include <algorithm>

#include "daemon/core/core.h"
#include "daemon/core/links.h"
#include "proto/base/grant_page.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// What a rank may have copied at most, whatever it reports: what its link
// carries, and one copy ahead. A sum that a lie has filled stays wrong for as
// long as the daemon lives.
constexpr double kFastestLink = 1e12;  // bytes per second, where none is known
constexpr double kOneCopy = 64.0 * (1 << 30);

uint64_t MostCopied(double bytes_per_second, absl::Duration since) {
  const double rate = bytes_per_second > 0 ? bytes_per_second : kFastestLink;
  const double most = kOneCopy + rate * absl::ToDoubleSeconds(since);
  return static_cast<uint64_t>(std::min(most, 0x1p62));
}

void AddUpTo(uint64_t most, uint64_t more, uint64_t& sum) {
  sum = more < most - std::min(sum, most) ? sum + more : std::max(sum, most);
}

}  // namespace

Effects Core::Receive(SessionId id, RequestId request, const Request& body,
                      absl::Time now) {
  Effects effects;
  Session* found = sessions_.Find(id);
  if (found == nullptr) return effects;
  Session& session = *found;
  if (session.state == Session::State::kClosed) return effects;
  switch (session.history.Begin(request)) {
    case RequestHistory::Seen::kRunning:
      return effects;  // its answer is on the way
    case RequestHistory::Seen::kAnswered:
      effects.push_back(SendReply{id, request, Repeat(session, request)});
      return effects;
    case RequestHistory::Seen::kForgotten:
      effects.push_back(SendReply{
          id, request,
          absl::InvalidArgumentError(fmt::format(
              "request id {} is older than the last {} requests: ids count up",
              request.value(), RequestHistory::kWindow))});
      return effects;
    case RequestHistory::Seen::kNew:
      break;
  }
  if (session.state == Session::State::kHalfOpen &&
      !std::holds_alternative<HelloRequest>(body)) {
    Answer(session, request,
           absl::FailedPreconditionError("a session begins with Hello"),
           effects);
    return effects;
  }
  std::visit(
      [&](const auto& typed) { Handle(session, request, typed, now, effects); },
      body);
  Settle(now, effects);
  return effects;
}

Reply Core::Repeat(const Session& session, RequestId request) const {
  const Reply& reply = session.history.answer(request);
  if (const auto* welcome = std::get_if<WelcomeReply>(&reply);
      welcome != nullptr && !session.guarantee_lowered.empty()) {
    WelcomeReply now = *welcome;
    now.guaranteed_bytes_per_second = session.guaranteed_bytes_per_second;
    now.guarantee_refused = session.guarantee_lowered;
    return now;
  }
  const auto* granted = std::get_if<GrantedReply>(&reply);
  if (granted == nullptr ||
      ledger_.LeasesOf(session.id).contains(granted->lease)) {
    return reply;
  }
  return absl::NotFoundError(
      fmt::format("request {} was granted as lease {}, which was freed since",
                  request.value(), granted->lease.value()));
}

void Core::Answer(Session& session, RequestId request, Reply reply,
                  Effects& effects) {
  session.history.Answer(request, reply);
  effects.push_back(SendReply{session.id, request, std::move(reply)});
}

absl::Status Core::AdmitHello(const Session& session,
                              const HelloRequest& hello) const {
  if (session.state != Session::State::kHalfOpen) {
    return absl::FailedPreconditionError(
        "this session has said Hello already: open another one");
  }
  if (hello.observer) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(CheckDrain());
  if (hello.gpu.value() >= config_.gpus.size()) {
    return absl::InvalidArgumentError(
        fmt::format("no GPU {}: this node has {} (0 to {})", hello.gpu.value(),
                    config_.gpus.size(), config_.gpus.size() - 1));
  }
  if (hello.local_ranks < 1 || hello.world_size < hello.local_ranks ||
      hello.rank.value() >= static_cast<uint64_t>(hello.world_size)) {
    return absl::InvalidArgumentError(fmt::format(
        "rank {} of {} with {} on this node does not add up: 0 <= rank < "
        "world size, 1 <= local ranks <= world size",
        hello.rank.value(), hello.world_size, hello.local_ranks));
  }
  for (const auto& [id, other] : sessions_) {
    if (!other.is_rank() || other.hello.job != hello.job ||
        other.peer.principal != session.peer.principal) {
      continue;
    }
    if (other.hello.rank == hello.rank) {
      return absl::AlreadyExistsError(fmt::format(
          "rank {} of job {} is attached already, by process {}: choose "
          "another job name, or end it",
          hello.rank.value(), hello.job, other.peer.pid));
    }
    if (other.hello.world_size != hello.world_size ||
        other.hello.local_ranks != hello.local_ranks) {
      return absl::InvalidArgumentError(fmt::format(
          "rank {} says job {} has {} ranks, {} here; rank {} said {}, {}: "
          "choose another job name, or end it",
          hello.rank.value(), hello.job, hello.world_size, hello.local_ranks,
          other.hello.rank.value(), other.hello.world_size,
          other.hello.local_ranks));
    }
  }
  return absl::OkStatus();
}

LinkSpeed Core::LinkOf(DeviceIndex gpu) const {
  for (const LinkSpeed& link : config_.links) {
    if (link.name == config_.gpus.at(gpu.value()).link) return link;
  }
  return {};
}

Promised Core::PromisedOn(const std::string& link,
                          const Session& besides) const {
  Promised promised;
  for (const auto& [id, session] : sessions_) {
    const double rate = session.guaranteed_bytes_per_second;
    if (rate == 0 || !session.is_rank() || id == besides.id) continue;
    const std::string& own = config_.gpus[session.hello.gpu.value()].link;
    if (!Loads(config_.links, own, link)) continue;
    promised.all += rate;
    if (session.peer.principal == besides.peer.principal) {
      promised.to_principal += rate;
    }
  }
  return promised;
}

absl::Status Core::AdmitOnPath(const Session& session, double asked,
                               double scale) const {
  const std::string& own = config_.gpus.at(session.hello.gpu.value()).link;
  bool limited = false;
  for (const size_t i : LinkPath(config_.links, own)) {
    const LinkSpeed& link = config_.links[i];
    if (!IsLimited(link)) continue;
    limited = true;
    Promised promised = PromisedOn(link.name, session);
    promised.all *= scale;
    promised.to_principal *= scale;
    SLUICE_RETURN_IF_ERROR(AdmitGuarantee(link, asked * scale, promised));
  }
  if (limited) return absl::OkStatus();
  return AdmitGuarantee(LinkOf(session.hello.gpu), asked, {});  // says why not
}

GuaranteeLeft Core::KeepOnPath(const Session& session, double had) const {
  const std::string& own = config_.gpus.at(session.hello.gpu.value()).link;
  GuaranteeLeft left{had, ""};
  bool limited = false;
  for (const size_t i : LinkPath(config_.links, own)) {
    const LinkSpeed& link = config_.links[i];
    if (!IsLimited(link)) continue;
    limited = true;
    GuaranteeLeft here = KeepGuarantee(link, left.bytes_per_second,
                                       PromisedOn(link.name, session));
    if (!here.why.empty()) left = std::move(here);
  }
  if (limited) return left;
  const absl::Status why = AdmitGuarantee(LinkOf(session.hello.gpu), had, {});
  return {0, std::string(why.message())};
}

std::string Core::Guarantee(Session& session, RequestId request,
                            absl::Time now) {
  const double asked = session.hello.guaranteed_bytes_per_second;
  if (!(asked > 0)) return "";
  const Principal& principal = session.peer.principal;
  const absl::Status admitted = AdmitOnPath(session, asked);
  if (admitted.ok()) {
    session.guaranteed_bytes_per_second = asked;
    return "";
  }
  Log(now, EventKind::kRefuse,
      fmt::format("rank {} of job {}: {}", session.hello.rank.value(),
                  session.hello.job, std::string(admitted.message())),
      principal, {session.id, request});
  return std::string(admitted.message());
}

int Core::TakeSlot() {
  for (int slot = 0; slot < kGrantSlots; ++slot) {
    if (!slots_[slot]) {
      slots_[slot] = true;
      return slot;
    }
  }
  return -1;
}

void Core::Handle(Session& session, RequestId request,
                  const HelloRequest& hello, absl::Time now, Effects& effects) {
  if (const absl::Status admitted = AdmitHello(session, hello);
      !admitted.ok()) {
    return Answer(session, request, admitted, effects);
  }
  if (!hello.observer) {
    const int slot = TakeSlot();
    if (slot < 0) {
      return Answer(
          session, request,
          absl::ResourceExhaustedError(fmt::format(
              "all {} rank sessions of this node are taken", kGrantSlots)),
          effects);
    }
    session.grant_slot = slot;
    Log(now, EventKind::kAttach,
        fmt::format("rank {} of job {}, process {}, on GPU {}",
                    hello.rank.value(), hello.job, session.peer.pid,
                    hello.gpu.value()),
        session.peer.principal, {session.id, request});
  }
  session.hello = hello;
  session.state = Session::State::kAttached;
  half_open_.erase(session.id);
  WelcomeReply welcome{.observer = hello.observer,
                       .grant_slot = session.grant_slot,
                       .gpu = hello.gpu,
                       .protocol = hello.protocol};
  if (session.is_rank()) {
    welcome.guarantee_refused = Guarantee(session, request, now);
    welcome.guaranteed_bytes_per_second = session.guaranteed_bytes_per_second;
    effects.push_back(AttachGrants{session.id, session.grant_slot, hello.gpu,
                                   session.guaranteed_bytes_per_second,
                                   WeightOf(config_, session.peer.principal)});
    ledger_.Open(session.id, session.job());
    joint_.RankAttached(
        session.id, {session.job(), hello.rank, hello.gpu, hello.local_ranks});
    journal_.stats.jobs.Began(session.job(), now);
  }
  Answer(session, request, std::move(welcome), effects);
}

void Core::Handle(Session& session, RequestId request,
                  const StepReportRequest& report, absl::Time now,
                  Effects& effects) {
  StepReport step = report.step;
  if (!session.is_rank()) {
    return Answer(
        session, request,
        absl::FailedPreconditionError("an observer's session reports no steps"),
        effects);
  }
  joint_.StepReported(session.id);
  const StepTotals counted = session.totals();
  if (step.totals.reports == 0) step.totals = Plus(counted, step);
  const StepTotals more = Since(counted, step.totals);
  session.last_step = step;
  session.hbm_peak = std::max(session.hbm_peak, step.hbm_peak);
  JobStats& job = journal_.stats.jobs.Of(session.job());
  AddUpTo(UINT64_MAX, static_cast<uint64_t>(more.reports), job.steps);
  AddUpTo(UINT64_MAX, static_cast<uint64_t>(more.tokens), job.tokens);
  job.stall_seconds += more.stall_seconds;
  job.grant_wait_seconds += more.grant_wait_seconds;
  AddUpTo(UINT64_MAX, static_cast<uint64_t>(more.plan_mismatches),
          job.plan_mismatches);
  const LinkSpeed link = LinkOf(session.hello.gpu);
  const absl::Duration since = now - session.connected_at;
  AddUpTo(MostCopied(SpeedOf(link, kH2d), since), more.h2d.size(),
          session.copies_reported[kH2d]);
  AddUpTo(MostCopied(SpeedOf(link, kD2h), since), more.d2h.size(),
          session.copies_reported[kD2h]);
  CountCopies(session);
  job.step_seconds.Observe(step.seconds);
  journal_.stats.grant_wait_seconds.Observe(step.grant_wait_seconds);
  for (const double seconds : report.map_seconds) {
    journal_.stats.map_seconds.Observe(seconds);
  }
  Answer(session, request, NotedReply{}, effects);
}

void Core::CopiesSeen(const std::map<int, Directions>& used) {
  for (const auto& [id, session] : sessions_) {
    if (!session.is_rank()) continue;
    const auto seen = used.find(session.grant_slot);
    if (seen == used.end() || seen->second == session.copies_seen) continue;
    Session& copied = sessions_.Edit(id);
    copied.copies_seen = seen->second;
    CountCopies(copied);
  }
}

void Core::CountCopies(Session& session) {
  GpuStats& gpu = journal_.stats.gpus[session.hello.gpu.value()];
  for (const int d : {kH2d, kD2h}) {
    const uint64_t now =
        std::max(session.copies_reported[d], session.copies_seen[d]);
    uint64_t& counted = session.copies_counted[d];
    if (now <= counted) continue;  // counters never fall
    Bytes& sum = d == kH2d ? gpu.h2d : gpu.d2h;
    uint64_t bytes = sum.size();
    AddUpTo(INT64_MAX, now - counted, bytes);
    sum = Bytes(static_cast<int64_t>(bytes));
    counted = now;
  }
}

void Core::Handle(Session& session, RequestId request, const ProfileRequest&,
                  absl::Time, Effects& effects) {
  if (!session.is_rank()) {
    return Answer(session, request,
                  absl::FailedPreconditionError(
                      "an observer's session has no plans: attach as a rank"),
                  effects);
  }
  effects.push_back(ReadProfile{session.id, request});
}

Effects Core::ProfileRead(SessionId id, RequestId request,
                          absl::StatusOr<ProfileWithHash> read,
                          absl::Time now) {
  Effects effects;
  Session* found = sessions_.Find(id);
  if (found == nullptr || !found->is_rank()) return effects;
  Session& session = *found;
  if (!read.ok()) {
    Answer(session, request, read.status(), effects);
    return effects;
  }
  const plan::RankProfile& profile = *read->profile;
  if (profile.rank != session.hello.rank || profile.gpu != session.hello.gpu) {
    Answer(session, request,
           absl::InvalidArgumentError(fmt::format(
               "the profile is of rank {} on GPU {}, but this session is rank "
               "{} on GPU {}",
               profile.rank.value(), profile.gpu.value(),
               session.hello.rank.value(), session.hello.gpu.value())),
           effects);
    return effects;
  }
  absl::Status may = joint_.MayKeep(id, profile);
  if (!may.ok()) {
    ++journal_.stats.profiles_refused;
    Answer(session, request, std::move(may), effects);
    return effects;
  }
  const int waiting = joint_.Submit(id, *std::move(read));
  session.told_plan = PlanId();
  Answer(session, request, SubmittedReply{waiting}, effects);
  if (waiting == 0) joint_.Ask(session.job(), now, effects);
  Settle(now, effects);
  return effects;
}

Effects Core::PlanSolved(PlanRoundId round,
                         absl::StatusOr<plan::NodePlan> solved, absl::Time now,
                         std::vector<KeyedUnit> units) {
  Effects effects;
  joint_.PlanSolved(round, std::move(solved), std::move(units), now, effects);
  Settle(now, effects);
  return effects;
}

void Core::Handle(Session& session, RequestId request,
                  const PlanTakenRequest& taken, absl::Time now,
                  Effects& effects) {
  Answer(session, request, NotedReply{}, effects);
  if (session.is_rank()) joint_.PlanTaken(session.id, taken, now);
}

Effects Core::ChangeNotSent(SessionId id, PlanId plan, absl::Time now) {
  Effects effects;
  joint_.ChangeNotSent(id, plan, now);
  Settle(now, effects);
  return effects;
}

void Core::PlanProgressed(PlanRoundId round,
                          const plan::PlanProgress& progress) {
  joint_.Progressed(round, progress);
}

void Core::UnitsRead(absl::StatusOr<std::vector<KeyedUnit>> units,
                     absl::Time now) {
  joint_.UnitsRead(std::move(units), now);
}

void Core::Handle(Session& session, RequestId request,
                  const QueryRequest& query, absl::Time, Effects& effects) {
  // A plan of somebody else's is as if it were not there.
  if (query.plan != PlanId()) {
    if (!FindPlan(query.plan, ViewerOf(session))) {
      return Answer(
          session, request,
          absl::NotFoundError(fmt::format(
              "no plan {}: sluicectl status lists them", query.plan.value())),
          effects);
    }
  }
  Answer(session, request, SnapshotReply{query.plan}, effects);
}

}  // namespace sluice::daemon

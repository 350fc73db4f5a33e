// What an earlier daemon left, and what of a rank is left to the next.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "daemon/crash/crash_point.h"
#include "daemon/service/log/log.h"
#include "daemon/service/service.h"
#include "proto/base/status.h"

namespace sluice::daemon {

namespace {

// The store's places that extents leave free. One user may have three quarters
// of them, so that as many ranks as one user may have fit beside processes with
// sessions that ended; or more, where one user may have nearly all ranks.
Share PlacesOfRanks(int64_t capacity, const Share& extents,
                    const Share& ranks) {
  const int64_t all = capacity - extents.all - Handover::kOwn;
  return {
      std::max(all * 3 / 4, all * ranks.each / std::max<int64_t>(ranks.all, 1)),
      all};
}

}  // namespace

absl::Status Service::MayBeKept(const Principal& who) const {
  if (!handover_->keeps()) return absl::OkStatus();
  const Share places =
      PlacesOfRanks(handover_->store().capacity(), options_.extents,
                    options_.shares[static_cast<size_t>(Resource::kRanks)]);
  // For not even one there would be any: it is not kept, and the log says so.
  if (places.all < Handover::kOfRank) return absl::OkStatus();
  int64_t all = 0, own = 0;
  for (const auto& [id, channel] : sessions_->channels()) {
    const Session* session = core_.session(id);
    if (session == nullptr || !session->was_rank()) continue;
    // A closed session keeps its process' descriptor until that ends.
    const int64_t taken = session->is_rank() ? Handover::kOfRank : 1;
    all += taken;
    if (channel->who() == who) own += taken;
  }
  const bool is_own = own + Handover::kOfRank > places.each;
  if (!is_own && all + Handover::kOfRank <= places.all) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format(
      "{} has {} descriptors kept for the next daemon, {} for a rank and 1 for "
      "a process whose session ended, and the limit is {}: end processes that "
      "closed their sessions, or raise FileDescriptorStoreMax= of the unit, or "
      "--max-descriptors of sluiced-keeper",
      is_own ? Name(who) : "this node", is_own ? own : all, Handover::kOfRank,
      is_own ? places.each : places.all));
}

absl::StatusOr<bool> Service::TakeOver() {
  handover_->Take(Handover::kDeaths);  // has been read
  if (options_.http_goes_on) handover_->Take(Handover::kHttp);
  auto saved = handover_->ReadState(core_);
  const bool any = saved.ok() && saved->has_value();
  if (any) Pass(CrashPoint::kStateRead);
  const absl::Status taken = any ? Adopt(**std::move(saved)) : saved.status();
  if (!taken.ok()) {
    return Annotate(taken, "what an earlier daemon left stays as it is");
  }
  handover_->DropRest();
  // What is adopted is saved before any client is told of it.
  if (!any) {
    next_session_ = handover_->last_session_left().value() + 1;
    handover_->Begin(core_, loop_->now());
  }
  const auto keep = [this](const char* name, int fd) {
    if (!handover_->Kept(name)) handover_->Keep(name, fd);
  };
  keep(Handover::kListener, listener_->fd());
  keep(Handover::kLimits, grants_->pages().kept().get());
  if (options_.sim_clocks) keep(Handover::kClocks, options_.sim_clocks->get());
  if (options_.deaths >= 0) keep(Handover::kDeaths, options_.deaths);
  return any;
}

absl::Status Service::Adopt(CoreState saved) {
  const absl::Status adopted = AdoptExtents(saved);
  if (!adopted.ok()) {
    extents_->Abandon();
    return adopted;
  }
  Pass(CrashPoint::kExtentsAdopted);
  std::set<SessionId> reached;
  std::vector<Core::Gone> gone;
  for (const auto& [id, session] : saved.sessions) {
    // What was not kept was never welcomed, so it holds nothing.
    const bool closed = session.state == Session::State::kClosed;
    if (closed && handover_->Left(Handover::ProcessOf(id))) {
      sessions_->Adopt(id, session.peer.principal, UniqueFd(),
                       handover_->Take(Handover::ProcessOf(id)));
    } else if (session.is_rank() && IsLeft(id)) {
      const absl::Status adopted = AdoptRank(session);
      if (adopted.ok()) reached.insert(id);
      if (!adopted.ok()) {
        WriteLog(LogLevel::kError, std::string(adopted.message()));
      }
    } else {
      gone.push_back({id, {}});
    }
  }
  Pass(CrashPoint::kSessionsAdopted);
  next_session_ = saved.last_session.value() + 1;
  core_.Load(std::move(saved));
  Pass(CrashPoint::kCoreLoaded);
  const absl::Time now = loop_->now();
  Effects effects = core_.TakeOver(reached, now);
  handover_->Begin(core_, now);
  Pass(CrashPoint::kAdoptedSaved);
  Execute(std::move(effects));
  if (!gone.empty()) Execute(core_.ProcessesGone(gone, now));
  Pass(CrashPoint::kTakenOver);
  return absl::OkStatus();
}

bool Service::IsLeft(SessionId id) const {
  return handover_->Left(Handover::SocketOf(id)) &&
         handover_->Left(Handover::ProcessOf(id)) &&
         handover_->Left(Handover::UsePageOf(id));
}

absl::Status Service::AdoptExtents(const CoreState& saved) {
  for (const auto& [pool, extents] : saved.ledger.pools) {
    for (const auto& [id, extent] : extents.extents) {
      if (extent.state == Pool::State::kMaking) continue;
      SLUICE_RETURN_IF_ERROR(extents_->Adopt(
          id, pool, extent.size, handover_->Take(Handover::NameOf(id))));
    }
  }
  return absl::OkStatus();
}

absl::Status Service::AdoptRank(const Session& session) {
  const Principal& who = session.peer.principal;
  sessions_->Adopt(session.id, who,
                   handover_->Take(Handover::SocketOf(session.id)),
                   handover_->Take(Handover::ProcessOf(session.id)));
  SLUICE_RETURN_IF_ERROR(grants_->Resume(session, WeightOf(core_.config(), who),
                                         core_.HasLease(session.id)));
  gpus_[session.id] = {session.hello.gpu.value()};
  for (DeviceIndex gpu : session.hello.shown) {
    gpus_[session.id].insert(gpu.value());
  }
  return absl::OkStatus();
}

void Service::KeepHttp(int fd) {
  if (!handover_->Kept(Handover::kHttp)) handover_->Keep(Handover::kHttp, fd);
}

void Service::SayReady() {
  handover_->store().Ready("serving");
  Pass(CrashPoint::kReadyTold);
}

}  // namespace sluice::daemon

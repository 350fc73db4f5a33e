// Plans: profiles that ranks submit, and what became of their rounds.
#include <fmt/format.h>

#include <utility>

#include "daemon/core/core.h"

namespace sluice::daemon {

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

}  // namespace sluice::daemon

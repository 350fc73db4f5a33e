#include "daemon/core/joint_planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "daemon/bandwidth/topology.h"
#include "daemon/core/planning/demands.h"
#include "daemon/quota/quotas.h"
#include "proto/base/find.h"
#include "proto/base/grant_page.h"
#include "proto/base/simulated.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::daemon {
namespace {

// Appends the resources to a key made of everything that a plan depends on.
void AddToKey(const plan::NodeResources& resources, std::string& key) {
  const auto ranks = [&key](const std::vector<size_t>& profiles) {
    for (size_t i : profiles) key += fmt::format("{},", i);
    key += "/";
  };
  for (const plan::LinkCapacity& link : resources.links) {
    key += fmt::format("{}:{}:{}:{}/", link.name, link.h2d_bytes_per_second,
                       link.d2h_bytes_per_second,
                       link.both_bytes_per_second.value_or(0));
    ranks(link.profiles);
  }
  for (const plan::HostLimit& host : resources.hosts) {
    key += fmt::format("{}:{}/", host.name, host.bytes.count());
    ranks(host.profiles);
  }
}

size_t BuffersOf(const Asking& asking) {
  size_t buffers = 0;
  for (const auto& [rank, read] : asking.profiles) {
    for (const plan::SegmentKind& segment : read.profile->segments) {
      buffers += segment.trace.buffers.size();
    }
  }
  return buffers;
}

// The speed of a link's unlimited direction if the other one is limited: more
// than any link carries, and a value that a plan request may have (proto/plan).
constexpr double kOpenBytesPerSecond = 1e12;

// Returns the name of a job as `viewer` may see it.
std::string NameFor(const JobKey& job, const Principal* viewer) {
  return !viewer || job.principal == *viewer ? "job " + job.name
                                             : "another user's job";
}

// Returns the indexes of the positions for which `chosen` holds.
template <typename Chosen>
std::vector<size_t> Where(const std::vector<Position>& positions,
                          Chosen chosen) {
  std::vector<size_t> found;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (chosen(positions[i])) found.push_back(i);
  }
  return found;
}

// Returns the capacity of a link for `ranks`: the fraction `part` of its speed.
plan::LinkCapacity CapacityOf(const LinkSpeed& link, double part,
                              std::vector<size_t> ranks) {
  const auto share = [part](double speed) {
    return speed > 0 ? speed * part : kOpenBytesPerSecond;
  };
  plan::LinkCapacity capacity{link.name, share(SpeedOf(link, kH2d)),
                              share(SpeedOf(link, kD2h)), std::move(ranks)};
  if (link.both_bytes_per_second > 0) {
    capacity.both_bytes_per_second = share(link.both_bytes_per_second);
  }
  return capacity;
}

constexpr size_t kNumbers = 96;  // bytes of one message's numbers and tags
constexpr size_t kOffset = 9;    // bytes of one buffer's offset, a varint

// Returns the saved size of a profile without its traces.
size_t SizeOf(const plan::RankProfile& profile) {
  size_t bytes = 2 * kNumbers + profile.limited_by.size();
  for (const plan::LayerKind& kind : profile.kinds) {
    bytes += kNumbers + kind.name.size();
  }
  for (const plan::SkeletalClass& each : profile.classes) {
    bytes += kNumbers + each.name.size() + each.kind.size() + each.why.size();
  }
  return bytes;
}

size_t SizeOf(const plan::NodePlan& plan) {
  size_t bytes = kNumbers + plan.infeasible.size();
  for (const plan::PlanLimit& limit : plan.limits) {
    bytes += kNumbers + limit.what.size();
  }
  for (const plan::RankPlan& rank : plan.ranks) {
    bytes += kNumbers;
    for (const plan::SegmentPlan& segment : rank.segments) {
      bytes += kNumbers + segment.name.size() +
               kOffset * segment.placement.offsets.size();
    }
    for (const plan::ClassPlan& each : rank.classes) {
      bytes += kNumbers + each.name.size() + each.kind.size() + each.why.size();
    }
  }
  return bytes;
}

// Returns the most bytes that are saved for a rank with this profile: the
// profile, the rank's parts of three plans (current, former and settled; see
// Member) and of two future plans, one of which has segments.
size_t MostSaved(const plan::RankProfile& profile) {
  constexpr size_t kLimits = 8192;  // bytes of two plans' limits, with names
  constexpr size_t kReason = 512;   // bytes of the planner's text for a class
  size_t bytes =
      6 * SizeOf(profile) + kLimits + 2 * kReason * profile.classes.size();
  for (const plan::SegmentKind& segment : profile.segments) {
    bytes +=
        kNumbers + segment.name.size() + kOffset * segment.trace.buffers.size();
  }
  return bytes;
}

}  // namespace

JointPlanning::JointPlanning(const NodeConfig& config, const Ledger& ledger,
                             const WaitingQueue& line, Journal& journal)
    : config_(config), ledger_(ledger), line_(line), journal_(journal) {}

std::vector<SessionId> JointPlanning::RanksOf(const JobKey& job) const {
  std::vector<SessionId> ranks;
  for (const auto& [id, rank] : attached_) {
    if (rank.job == job) ranks.push_back(id);
  }
  return ranks;
}

void JointPlanning::RankLeft(SessionId session, absl::Time now,
                             Effects& effects) {
  const AttachedRank left = attached_.at(session);
  const JobKey& job = left.job;
  AbandonPlans(left, effects);
  members_.erase(job);
  held_.erase(job);
  std::erase_if(joining_, [&](const Asking& each) { return each.job == job; });
  if (members_.empty() && !rounds_.solving_together()) {
    next_.at = absl::InfiniteFuture();
  } else {
    // Even a job without a joint plan used a part of the links and the memory.
    PlanAgain(now + config_.leave_delay, "a job left");
  }
  attached_.erase(session);
  ++demands_changes_;
  if (!RanksOf(job).empty()) return;
  rounds_.current.erase(job);
  rounds_.promised.erase(job);
}

void JointPlanning::AbandonPlans(const AttachedRank& left, Effects& effects) {
  const JobKey& job = left.job;
  std::set<Rank> peers;       // ranks that submitted and get no plan
  std::vector<Asking> again;  // jobs of rounds that are given up
  const auto add = [&](const Profiles& profiles) {
    for (const auto& [rank, read] : profiles) {
      if (rank != left.rank) peers.insert(rank);
    }
  };
  if (const auto open = rounds_.collecting.extract(job)) {
    add(open.mapped().ranks);
  }
  std::erase_if(rounds_.solving, [&](const auto& entry) {
    const auto& [id, round] = entry;
    // A round in which only other users ask continues; otherwise a user with
    // jobs that come and go could delay it without end.
    const bool concerned =
        std::ranges::count(round.jobs, job) > 0 &&
        (round.asking.empty() ||
         std::ranges::any_of(round.asking, [&](const Asking& asking) {
           return asking.job.principal == job.principal;
         }));
    if (!concerned) return false;
    for (const Asking& asking : round.asking) {
      if (asking.job == job) {
        add(asking.profiles);
      } else {
        again.push_back(asking);
      }
    }
    effects.push_back(StopSolving{id});
    return true;
  });
  // Peers get no plan even if one was made and is held back.
  if (const HeldJoin* held = FindOrNull(held_, job)) add(held->asking.profiles);
  for (const Asking& asking : joining_) {
    if (asking.job == job) add(asking.profiles);
  }
  Notify(job, peers,
         PlanFailedNotice{.reason = fmt::format("rank {} of job {} left before "
                                                "the plan was made",
                                                left.rank.value(), job.name),
                          .peer_left = true},
         effects);
  joining_.insert(joining_.begin(), again.begin(), again.end());
}

void JointPlanning::StepReported(SessionId session) {
  const JobKey& job = attached_.at(session).job;
  if (StateOf(job) != Member::State::kAcquires) return;
  members_.Edit(job).state = Member::State::kTrains;
}

std::map<SessionId, PlanDemand> JointPlanning::Demands() const {
  std::map<SessionId, PlanDemand> demands;
  for (const auto& [session, rank] : attached_) {
    const Member* member = FindOrNull(members_, rank.job);
    if (member == nullptr || held_.contains(rank.job)) continue;
    const auto* profile = FindOrNull(member->profiles, rank.rank);
    const auto* plan = FindOrNull(
        member->change ? member->change->before : member->ranks, rank.rank);
    if (profile == nullptr || plan == nullptr) continue;
    demands[session] = DemandOf(*profile->profile, *plan);
  }
  return demands;
}

void JointPlanning::MemoryCameBack(absl::Time now) {
  if (members_.empty()) return;
  PlanAgain(now + config_.leave_delay, "memory came back");
}

absl::Time JointPlanning::NextDeadline() const {
  // While a joint question is solved, no other can start: the next one starts
  // when its answer arrives.
  absl::Time next =
      rounds_.solving_together() ? absl::InfiniteFuture() : next_.at;
  for (const auto& [id, round] : rounds_.solving) {
    next = std::min(next, round.deadline);
  }
  for (const auto& [job, held] : held_) next = std::min(next, held.deadline);
  for (const auto& [job, member] : members_) {
    if (member.change) next = std::min(next, member.change->deadline);
  }
  return next;
}

PlanRounds::Plan JointPlanning::FindPlan(PlanId id,
                                         const Principal* viewer) const {
  const PlanRounds::Kept* kept = rounds_.FindKept(id);
  if (!kept || (viewer && kept->job.principal != *viewer)) return nullptr;
  return kept->plan;
}

std::vector<PlanSnapshot> JointPlanning::Plans(const Principal* viewer) const {
  std::vector<PlanSnapshot> plans;
  for (const auto& kept : rounds_.kept) {
    if (viewer && kept.job.principal != *viewer) continue;
    plans.push_back({kept.job.name, kept.job.principal, kept.plan});
  }
  return plans;
}

std::vector<PlanningSnapshot> JointPlanning::Planning(const Principal* viewer,
                                                      absl::Time now) const {
  using State = PlanningSnapshot::State;
  std::vector<PlanningSnapshot> all;
  const auto add = [&](const JobKey& job, size_t ranks, size_t wanted,
                       PlanningSnapshot shown) {
    if (viewer && job.principal != *viewer) return;
    shown.job = job.name;
    shown.principal = job.principal;
    shown.ranks = static_cast<int>(ranks);
    shown.wanted = static_cast<int>(wanted);
    all.push_back(std::move(shown));
  };
  std::vector<std::string> shrinking;
  for (const JobKey& job : Shrinking()) {
    shrinking.push_back(NameFor(job, viewer));
  }
  for (const auto& [job, open] : rounds_.collecting) {
    add(job, open.ranks.size(), open.wanted, {.state = State::kCollecting});
  }
  for (const auto& [job, profiles] : joining_) {
    add(job, profiles.size(), profiles.size(), {.state = State::kQueued});
  }
  for (const auto& [id, round] : rounds_.solving) {
    for (const auto& [job, profiles] : round.asking) {
      add(job, profiles.size(), profiles.size(),
          {.state = State::kSolving,
           .elapsed = now - round.started,
           .left = round.deadline - now,
           .progress = round.progress});
    }
  }
  for (const auto& [job, held] : held_) {
    const size_t ranks = held.asking.profiles.size();
    add(job, ranks, ranks,
        {.state = State::kWaiting,
         .elapsed = now - held.since,
         .left = held.deadline - now,
         .waiting_for = shrinking,
         .plan = held.plan});
  }
  for (const PlaceInLine& place : line_.for_plans()) {
    const Waiter& lease = line_.waiters().at(place);
    const AttachedRank& rank = attached_.at(lease.session);
    add(rank.job, 0, rank.local_ranks,
        {.state = State::kWaiting,
         .elapsed = now - lease.since,
         .left = lease.deadline - now,
         .waiting_for = shrinking});
  }
  for (const auto& [job, member] : members_) {
    if (!member.change) continue;
    const size_t ranks = member.ranks.size();
    add(job, ranks - member.change->open.size(), ranks,
        {.state = State::kChanging,
         .elapsed = now - member.change->since,
         .plan = member.change->plan});
  }
  return all;
}

JointPlanningState JointPlanning::Save() const {
  return {attached_, rounds_, joining_, members_.rows(), held_, next_};
}

bool JointPlanning::TakeOver(absl::Time now, Effects& effects) {
  for (const auto& [session, rank] : attached_) {
    if (StateOf(rank.job) != Member::State::kChanging) continue;
    const PlanChange& change = *members_.at(rank.job).change;
    if (!change.open.contains(rank.rank)) continue;
    effects.push_back(SendNotice{session, PlanChangedNotice{change.plan}});
  }
  const PlannedLinks links = PlannedLinksOf(config_.links);
  bool others = false;
  for (const auto& [job, member] : members_) {
    if (member.links == links) continue;
    others = others || member.links.has_value();
    members_.Edit(job).links = links;
  }
  if (others) {
    PlanAgain(now + config_.leave_delay, "the speeds of links have changed");
  }
  return others;
}

void JointPlanning::AddLoose(LooseState& loose) const {
  loose.next_round = rounds_.next_round;
  loose.next_plan = rounds_.next_plan;
  loose.next_joint =
      DueWithout(rounds_.solving, !line_.for_plans().empty(), next_);
}

NextRound JointPlanning::DueWithout(
    const std::map<PlanRoundId, PlanRounds::Round>& solving, bool leases_wait,
    NextRound next) {
  for (const auto& [id, round] : solving) {
    if (!round.together || (!round.asking.empty() && !leases_wait)) continue;
    next.at = std::min(next.at, round.started);
  }
  return next;
}

void JointPlanning::Load(JointPlanningState saved) {
  SLUICE_CHECK(attached_.empty());
  attached_ = std::move(saved.attached);
  rounds_ = std::move(saved.rounds);
  rounds_.current.TouchAll();
  rounds_.promised.TouchAll();
  joining_ = std::move(saved.joining);
  members_.Load(std::move(saved.members));
  held_ = std::move(saved.held);
  next_ = std::move(saved.next);
}

void JointPlanning::CheckInvariants() const {
  rounds_.CheckInvariants();
  units_.CheckInvariants();
  std::set<JobKey> attached;
  for (const auto& [id, rank] : attached_) attached.insert(rank.job);
  for (const auto& [job, member] : members_) {
    SLUICE_CHECK(attached.contains(job));
    SLUICE_CHECK(member.change.has_value() ==
                 (member.state == Member::State::kToChange ||
                  member.state == Member::State::kChanging));
    SLUICE_CHECK(!member.change || !member.change->open.empty());
  }
  for (const auto& [job, held] : held_) SLUICE_CHECK(members_.contains(job));
  for (const Asking& asking : joining_) {
    SLUICE_CHECK(attached.contains(asking.job));
  }
}

// --- Plans: from the last profile to the plan each rank gets

int JointPlanning::Submit(SessionId session, ProfileWithHash profile) {
  const AttachedRank& rank = attached_.at(session);
  PlanRounds::Collecting& open = rounds_.collecting[rank.job];
  open.ranks[rank.rank] = std::move(profile);
  open.wanted = rank.local_ranks;
  return std::max(0, open.wanted - static_cast<int>(open.ranks.size()));
}

void JointPlanning::Ask(const JobKey& job, absl::Time now, Effects& effects) {
  auto collected = rounds_.collecting.extract(job);
  Asking asking{job, std::move(collected.mapped().ranks)};
  held_.erase(job);
  if (IsSettled(asking)) return StartRound({asking}, false, now, effects);
  // A member that asks again is treated as a new job that joins.
  members_.erase(job);
  std::erase_if(joining_, [&](const Asking& each) { return each.job == job; });
  joining_.push_back(std::move(asking));
  StartTogether(now, effects);
  CutOffAtShare(now, effects);
}

void JointPlanning::CutOffAtShare(absl::Time now, Effects& effects) {
  for (auto& [id, round] : rounds_.solving) {
    if (!round.together) continue;
    // Moves other users' jobs in front of further jobs of this round's users.
    const auto its = std::stable_partition(
        joining_.begin(), joining_.end(),
        [&asking = round.asking](const Asking& waits) {
          return std::ranges::none_of(asking, [&waits](const Asking& each) {
            return each.job.principal == waits.job.principal;
          });
        });
    if (its == joining_.begin()) continue;  // no other user waits
    effects.push_back(HurrySolving{id});
    // The worker gets at least half of kShare from now on to return a plan.
    round.deadline = std::min(
        round.deadline, std::max(round.started + kShare, now + kShare / 2));
  }
}

void JointPlanning::StartRound(std::vector<Asking> asking, bool together,
                               absl::Time now, Effects& effects) {
  PlanRounds::Round round{.asking = std::move(asking), .together = together};
  std::map<JobKey, const Profiles*> jobs;
  if (together) {
    for (const auto& [job, member] : members_) jobs[job] = &member.profiles;
  }
  SolvePlan question{.time_limit = config_.plan_time_limit};
  std::vector<std::string> units;
  for (const auto& [job, profiles] : round.asking) {
    jobs[job] = &profiles;
    for (const auto& [rank, read] : profiles) {
      units.insert(units.end(), read.units.begin(), read.units.end());
    }
  }
  for (const auto& [job, profiles] : jobs) {
    const size_t number = round.jobs.size();
    round.jobs.push_back(job);
    for (const auto& [rank, read] : *profiles) {
      round.cache_key += fmt::format("{}:{}/", number, read.hash);
      round.positions.push_back({job, rank, read.profile});
      question.profiles.push_back(read.profile);
      question.jobs.push_back(static_cast<int64_t>(number));
    }
  }
  round.resources = ResourcesFor(round.positions);
  AddToKey(round.resources, round.cache_key);
  if (const auto cached = rounds_.Cached(round.cache_key, together)) {
    ++journal_.stats.plans[PlanOutcome::kCached];
    return together ? TogetherSolved(round, cached, now, effects)
                    : AloneSolved(round.asking[0], cached, now, effects);
  }
  round.started = now;
  round.deadline = now + TimeForRound();
  question.resources = round.resources;
  question.known = units_.Find(units);
  question.who = round.asking.empty() ? round.jobs.front().principal
                                      : round.asking.front().job.principal;
  question.round = PlanRoundId(rounds_.next_round++);
  rounds_.solving[question.round] = std::move(round);
  effects.push_back(std::move(question));
}

void JointPlanning::PlanSolved(PlanRoundId id,
                               absl::StatusOr<plan::NodePlan> solved,
                               std::vector<KeyedUnit> units, absl::Time now,
                               Effects& effects) {
  // Solved units are kept even if the round was given up.
  for (KeyedUnit& unit : units) units_.Add(std::move(unit));
  auto finished = rounds_.solving.extract(id);
  if (finished.empty()) return;
  PlanRounds::Round round = std::move(finished.mapped());
  Stats& stats = journal_.stats;
  stats.plan_seconds.Observe(absl::ToDoubleSeconds(now - round.started));
  if (!solved.ok()) {
    ++stats.plans[PlanOutcome::kFailed];
    return RoundFailed(round, solved.status(), now, effects);
  }
  // An infeasible plan is an answer and not an error: each rank gets the plan,
  // and its `infeasible` says what to do. But if several jobs were planned
  // together, each of them is then planned alone.
  const bool feasible = solved->infeasible.empty();
  ++stats.plans[feasible ? PlanOutcome::kSolved : PlanOutcome::kInfeasible];
  stats.plan_units[UnitOutcome::kSolved] +=
      static_cast<uint64_t>(solved->units_solved);
  stats.plan_units[UnitOutcome::kKnown] +=
      static_cast<uint64_t>(solved->units_known);
  if (!round.together) {
    const Plan plan =
        rounds_.Keep(round.jobs[0], round.cache_key, *std::move(solved));
    AloneSolved(round.asking[0], plan, now, effects);
  } else if (!feasible && round.jobs.size() > 1) {
    RoundFailed(round, absl::ResourceExhaustedError(solved->infeasible), now,
                effects);
  } else {
    const Plan plan = rounds_.KeepTogether(round.cache_key, *std::move(solved));
    TogetherSolved(round, plan, now, effects);
  }
}

void JointPlanning::AloneSolved(const Asking& asking, const Plan& plan,
                                absl::Time now, Effects& effects) {
  const JobKey& job = asking.job;
  rounds_.Use(job, plan->id);
  LogPlan(job, *plan, now);
  GivePlan(asking, plan->id, effects);
  if (!plan->infeasible.empty()) return;
  if (!IsSettled(asking)) {
    members_.Put(job) = MemberOf(asking, *plan, config_.links);
  } else if (Member* member = members_.Find(job)) {
    // The answer to a settled question is what all nodes of the run agreed on,
    // which may be less than this node's earlier plan.
    member->settled = PlansOf(*plan);
    if (!member->change) member->ranks = member->settled;
  }
}

void JointPlanning::RoundFailed(const PlanRounds::Round& round,
                                const absl::Status& why, absl::Time now,
                                Effects& effects) {
  const bool cut_off = round.deadline < round.started + TimeForRound();
  // The text is made printable, because the worker computes on client data and
  // so is not trusted.
  const std::string reason =
      cut_off && absl::IsDeadlineExceeded(why)
          ? "not planned together with others, because that took longer than "
            "its share while another user's job waits"
          : Printable(std::string(why.message()));
  // If there were several jobs, only the daemon's user may see the message,
  // because it may name another principal's job.
  if (round.jobs.size() == 1) {
    Log(now, round.jobs[0], reason);
  } else {
    journal_.Log(now, EventKind::kPlan,
                 fmt::format("{} jobs together: {}", round.jobs.size(), reason),
                 {config_.own_uid, ""});
  }
  if (cut_off && round.asking.empty()) {
    PlanAgain(now + config_.leave_delay, next_.why);
  }
  for (const Asking& asking : round.asking) {
    if (round.jobs.size() > 1 || cut_off) {
      // Planned alone, the job gets only free memory, and running plans stay.
      StartRound({asking}, false, now, effects);
      continue;
    }
    Notify(asking.job, asking.profiles,
           PlanFailedNotice{reason, ShortageOf(why)}, effects);
  }
}

void JointPlanning::Log(absl::Time now, const JobKey& job,
                        const std::string& what) {
  journal_.Log(now, EventKind::kPlan, fmt::format("job {}: {}", job.name, what),
               job.principal);
}

void JointPlanning::LogPlan(const JobKey& job, const plan::NodePlan& plan,
                            absl::Time now) {
  Log(now, job,
      plan.infeasible.empty()
          ? fmt::format("plan {} for {} ranks in {:.3f} s", plan.id.value(),
                        plan.ranks.size(), plan.seconds)
          : plan.infeasible);
}

template <typename Ranks>
void JointPlanning::Notify(const JobKey& job, const Ranks& ranks,
                           const Notice& notice, Effects& effects) const {
  for (SessionId session : RanksOf(job)) {
    if (!ranks.contains(attached_.at(session).rank)) continue;
    effects.push_back(SendNotice{session, notice});
  }
}

void JointPlanning::GivePlan(const Asking& asking, PlanId plan,
                             Effects& effects) const {
  Notify(asking.job, asking.profiles, PlanReadyNotice{plan}, effects);
}

// --- Which jobs are planned together, and when

std::vector<Asking> JointPlanning::TakeNextUsersJobs() {
  if (joining_.empty()) return {};
  const Principal user = joining_.front().job.principal;
  std::vector<Asking> taken;
  size_t buffers = 0;
  std::erase_if(joining_, [&](Asking& asking) {
    if (asking.job.principal != user) return false;
    buffers += BuffersOf(asking);
    if (!taken.empty() && buffers > kMostBuffers) return false;
    taken.push_back(std::move(asking));
    return true;
  });
  return taken;
}

void JointPlanning::StartTogether(absl::Time now, Effects& effects) {
  const bool due = next_.at <= now;
  if (rounds_.solving_together() || (joining_.empty() && !due)) return;
  next_.at = absl::InfiniteFuture();
  std::vector<Asking> asking = TakeNextUsersJobs();
  for (const Asking& each : asking) {
    // A member that asks again is counted only as an asking job.
    members_.erase(each.job);
    held_.erase(each.job);
  }
  if (asking.empty() && members_.empty()) return;
  StartRound(std::move(asking), true, now, effects);
  CutOffAtShare(now, effects);
}

void JointPlanning::TogetherSolved(const PlanRounds::Round& round,
                                   const Plan& plan, absl::Time now,
                                   Effects& effects) {
  const std::set<JobKey> changed = WhoChanges(members_.rows(), round, *plan);
  // The jobs that receive their parts of the plan.
  std::set<JobKey> told = changed;
  for (const Asking& asking : round.asking) told.insert(asking.job);
  std::map<JobKey, Plan> parts;
  for (size_t number = 0; number < round.jobs.size(); ++number) {
    const JobKey& job = round.jobs[number];
    if (!told.contains(job)) continue;
    const std::string key = fmt::format("{}{}", round.cache_key, number);
    auto part = rounds_.Cached(key, /*together=*/false);
    const auto* kept = part ? rounds_.FindKept(part->id) : nullptr;
    if (kept == nullptr || kept->job.principal != job.principal) {
      part = rounds_.Keep(job, key, PartOf(*plan, number, round));
    }
    // Promised at once, because the next Keep may drop a plan that is neither
    // used nor promised.
    rounds_.promised.Put(job) = part->id;
    parts[job] = std::move(part);
  }
  // Changes of running jobs are proposed first, because joining jobs may have
  // to wait for memory that these changes free.
  const bool joins = !round.asking.empty();
  const std::optional<JobKey> whose = joins ? round.asking[0].job : next_.whose;
  const std::string why = joins ? "joins" : next_.why;
  for (const JobKey& job : changed) {
    ProposeChange(job, parts.at(job),
                  whose ? NameFor(*whose, &job.principal) + " " + why : why,
                  now);
  }
  for (const Asking& asking : round.asking) {
    AdmitJoin(asking, parts.at(asking.job), now, effects);
  }
  ReleaseHeld(now, effects);
}

void JointPlanning::AdmitJoin(const Asking& asking, const Plan& plan,
                              absl::Time now, Effects& effects) {
  const JobKey& job = asking.job;
  rounds_.Use(job, plan->id);
  LogPlan(job, *plan, now);
  const bool feasible = plan->infeasible.empty();
  if (feasible) members_.Put(job) = MemberOf(asking, *plan, config_.links);
  std::vector<std::string> others;
  for (const JobKey& other : Shrinking()) {
    others.push_back(NameFor(other, &job.principal));
  }
  if (!feasible || FitsNow(job) || (others.empty() && !ShrinksLate())) {
    return GivePlan(asking, plan->id, effects);
  }
  if (others.empty()) {
    members_.erase(job);
    next_.owed = NextRound::Owed::kRoundAfterChanges;
    return StartRound({asking}, false, now, effects);
  }
  Log(now, job,
      fmt::format("plan {} waits for host memory of {}, at most {:g} s",
                  plan->id.value(), fmt::join(others, ", "),
                  absl::ToDoubleSeconds(config_.join_wait)));
  held_[job] = {asking, plan->id, now, now + config_.join_wait};
}

void JointPlanning::ReleaseHeld(absl::Time now, Effects& effects) {
  std::vector<HeldJoin> free, late;
  std::erase_if(held_, [&](auto& entry) {
    const bool comes =
        !Shrinking().empty() || ledger_.IsReturning(entry.first.principal);
    const bool fits = FitsNow(entry.first);
    if (!fits && comes && now < entry.second.deadline) return false;
    // A plan's bytes are an upper bound, so the plan may fit even if no more
    // memory comes back.
    const bool give = fits || (!comes && !ShrinksLate());
    (give ? free : late).push_back(std::move(entry.second));
    return true;
  });
  AnnounceChanges(now, effects);
  if (!free.empty()) ++demands_changes_;
  for (HeldJoin& join : free) {
    rounds_.Use(join.asking.job, join.plan);
    GivePlan(join.asking, join.plan, effects);
  }
  if (!late.empty()) MarkShrinkersLate();
  for (HeldJoin& join : late) {
    Log(now, join.asking.job,
        fmt::format("no memory came back within {:g} s; planned with what is "
                    "free",
                    absl::ToDoubleSeconds(config_.join_wait)));
    members_.erase(join.asking.job);
    StartRound({join.asking}, false, now, effects);
  }
}

void JointPlanning::PlanAgain(absl::Time at, std::string why,
                              std::optional<JobKey> job) {
  next_.at = std::min(next_.at, at);
  next_.why = std::move(why);
  next_.whose = std::move(job);
}

void JointPlanning::Settle(absl::Time now, Effects& effects) {
  for (const auto& [job, each] : members_) {
    if (!each.change || now < each.change->deadline) continue;
    Member& member = members_.Edit(job);
    member.change->refused.merge(member.change->open);
    EndChange(job, member, "no answer", now);
  }
  ReleaseHeld(now, effects);
  if (next_.owed == NextRound::Owed::kRoundAfterChanges &&
      std::ranges::none_of(members_.rows(), [](const auto& each) {
        return each.second.change.has_value();
      })) {
    next_.owed = NextRound::Owed::kNothing;
    PlanAgain(now, "memory came back");
  }
  StartTogether(now, effects);
}

// --- Changes of running plans, and the memory that they free

void JointPlanning::ProposeChange(const JobKey& job, const Plan& plan,
                                  const std::string& why, absl::Time now) {
  Member& member = members_.Edit(job);
  std::map<Rank, plan::RankPlan> former =
      std::exchange(member.ranks, PlansOf(*plan));
  if (HeldJoin* held = FindOrNull(held_, job)) {
    // The job's ranks have not received the former plan.
    held->plan = plan->id;
    return;
  }
  PlanChange change{.plan = plan->id, .since = now};
  if (member.change) {
    change.wait = member.change->wait;
    former = std::move(member.change->before);
  }
  change.before = std::move(former);
  for (SessionId session : RanksOf(job)) {
    change.open.insert(attached_.at(session).rank);
  }
  Log(now, job,
      fmt::format("plan {} for {} ranks at their next step, since {}",
                  plan->id.value(), member.ranks.size(), why));
  member.change = std::move(change);
  member.state = Member::State::kToChange;
}

void JointPlanning::AnnounceChanges(absl::Time now, Effects& effects) {
  // Changes are announced in this order: to jobs that do not grow, or grow by
  // memory that is already free; to jobs that shrink in total, all at once,
  // because two of them may wait for each other; to all others.
  for (const auto chosen : {+[](bool fits, bool) { return fits; },
                            +[](bool, bool shrinks) { return shrinks; },
                            +[](bool, bool) { return true; }}) {
    std::vector<JobKey> next;
    for (const auto& [job, member] : members_) {
      if (member.state != Member::State::kToChange) continue;
      const bool fits = FitsNow(job);
      if (chosen(fits, Shrinks(member)) && (fits || !AwaitsTold(job))) {
        next.push_back(job);
      }
    }
    for (const JobKey& job : next) {
      Member& member = members_.Edit(job);
      member.state = Member::State::kChanging;
      member.change->deadline = now + config_.change_wait;
      ++journal_.stats.plan_changes[ChangeOutcome::kSent];
      for (SessionId session : RanksOf(job)) {
        effects.push_back(
            SendNotice{session, PlanChangedNotice{member.change->plan}});
      }
    }
  }
}

// Returns whether another job has received, but not yet answered, a change that
// frees memory. That job answers by the deadline of the change.
bool JointPlanning::AwaitsTold(const JobKey& job) const {
  return std::ranges::any_of(members_.rows(), [&](const auto& each) {
    const Member& other = each.second;
    return each.first != job && other.state == Member::State::kChanging &&
           (other.change->wait == PlanChange::Wait::kInVain || Shrinks(other));
  });
}

bool JointPlanning::Shrinks(const Member& member) const {
  return member.change &&
         HostPromised(member, member.ranks, std::nullopt) <
             HostPromised(member, member.change->before, std::nullopt);
}

std::vector<JobKey> JointPlanning::Shrinking() const {
  std::vector<JobKey> shrinking;
  for (const auto& [job, member] : members_) {
    if (Shrinks(member) && member.change->wait == PlanChange::Wait::kAwaited) {
      shrinking.push_back(job);
    }
  }
  return shrinking;
}

bool JointPlanning::OthersShrink(const JobKey& job) const {
  return std::ranges::any_of(Shrinking(), [&](const JobKey& other) {
    return other != job && other.principal == job.principal;
  });
}

bool JointPlanning::ShrinksLate() const {
  return std::ranges::any_of(members_.rows(), [](const auto& each) {
    return each.second.change &&
           each.second.change->wait == PlanChange::Wait::kInVain;
  });
}

void JointPlanning::MarkShrinkersLate() {
  for (const JobKey& job : Shrinking()) {
    members_.Edit(job).change->wait = PlanChange::Wait::kInVain;
  }
  next_.owed = NextRound::Owed::kRoundAfterChanges;
}

bool JointPlanning::FitsNow(const JobKey& job) const {
  const Member& member = members_.at(job);
  const Principal& principal = job.principal;
  for (const HostConfig& host : config_.hosts) {
    const uint64_t node = host.numa.value();
    const Bytes more = HostDue(node, job, member);
    if (more > Bytes(0) &&
        more > ledger_.UsableBy({PoolKind::kHost, node}, principal) -
                   HostGrowth({node, nullptr, {job}})) {
      return false;
    }
  }
  const Bytes more = HostDue(std::nullopt, job, member);
  if (more <= Bytes(0)) return true;
  const Bytes left = ledger_.HostLeft(principal);
  return more <= ledger_.HostLeft(job) &&
         more <= left - HostGrowth({{}, &principal, {job}});
}

void JointPlanning::PlanTaken(SessionId session, const PlanTakenRequest& taken,
                              absl::Time now) {
  const AttachedRank& rank = attached_.at(session);
  Member* member = members_.Find(rank.job);
  if (member == nullptr || !member->change) return;
  PlanChange& change = *member->change;
  if (change.plan != taken.plan) {
    // An answer to a superseded change. If the ranks took that plan, the job
    // falls back to it if the newer one is refused.
    if (taken.taken && !member->settled.empty()) {
      change.before = member->settled;
    }
    return;
  }
  change.open.erase(rank.rank);
  if (!taken.taken) change.refused.insert(rank.rank);
  if (change.open.empty()) EndChange(rank.job, *member, taken.note, now);
}

void JointPlanning::ChangeNotSent(SessionId session, PlanId plan,
                                  absl::Time now) {
  if (!attached_.contains(session)) return;
  PlanTaken(session, {plan, /*taken=*/false, "it could not be sent"}, now);
}

void JointPlanning::EndChange(const JobKey& job, Member& member,
                              const std::string& note, absl::Time now) {
  PlanChange& change = *member.change;
  const bool all = change.refused.empty();
  ++journal_.stats
        .plan_changes[all ? ChangeOutcome::kTaken : ChangeOutcome::kRefused];
  Log(now, job,
      fmt::format("plan {} {} after {:.1f} s: {}", change.plan.value(),
                  all ? "taken" : "not taken",
                  absl::ToDoubleSeconds(now - change.since), note));
  if (all) {
    rounds_.Use(job, change.plan);
    if (!member.settled.empty()) member.ranks = member.settled;
  } else {
    member.ranks = std::move(change.before);
    // No round is owed: its changes would be refused again.
    next_.owed = NextRound::Owed::kNothing;
  }
  member.change.reset();
  member.state = Member::State::kTrains;
}

// --- Host leases that running jobs may make room for

bool JointPlanning::AwaitRoom(SessionId session, const LeaseRequest& asked,
                              absl::Time now) {
  const auto& [job, rank, gpu, local_ranks] = attached_.at(session);
  if (asked.pool.kind != PoolKind::kHost || !MayEverFit(job, asked)) {
    return false;
  }
  // A session waits with at most one lease for a plan, so such leases are few.
  for (const PlaceInLine& place : line_.for_plans()) {
    if (line_.waiters().at(place).session == session) return false;
  }
  // Memory that a job frees goes only to its own principal.
  const bool could_shrink =
      std::ranges::any_of(members_.rows(), [&job = job](const auto& each) {
        const auto& [other, member] = each;
        return other != job && other.principal == job.principal &&
               HasFreeFractions(member.profiles);
      });
  const bool joins = !members_.contains(job);
  if (!could_shrink || (!joins && !OthersShrink(job))) return false;
  journal_.Log(
      now, EventKind::kPlan,
      fmt::format("rank {} of job {} waits for {} of host memory that running "
                  "jobs may give back",
                  rank.value(), job.name, FormatBytes(asked.size)),
      job.principal);
  if (joins) {
    PlanAgain(now + config_.leave_delay, "needs room to calibrate", job);
  }
  return true;
}

// Returns whether the lease would fit if all other members of its principal
// freed all their memory.
bool JointPlanning::MayEverFit(const JobKey& job,
                               const LeaseRequest& asked) const {
  const Bytes left = ledger_.HostLeft(job.principal);
  Bytes here, anywhere;
  for (const auto& [other, member] : members_) {
    if (other == job || other.principal != job.principal) continue;
    here += ledger_.HostHeld(other, asked.pool.ordinal);
    anywhere += ledger_.HostHeld(other, std::nullopt);
  }
  return asked.size <= ledger_.UsableBy(asked.pool, job.principal) + here &&
         asked.size <= ledger_.HostLeft(job) &&
         (left >= Limits::kUnlimited || asked.size <= left + anywhere);
}

bool JointPlanning::MakesRoom(const JobKey& job) const {
  return rounds_.solving_together() || next_.at != absl::InfiniteFuture() ||
         OthersShrink(job);
}

// --- The resources of a question: links and host memory

plan::NodeResources JointPlanning::ResourcesFor(
    const std::vector<Position>& positions) const {
  plan::NodeResources resources{.hosts = HostLimits(positions)};
  for (const LinkSpeed& link : config_.links) {
    const auto loads = [&](DeviceIndex gpu) {
      return Loads(config_.links, config_.gpus[gpu.value()].link, link.name);
    };
    std::vector<size_t> over = Where(positions, [&](const Position& each) {
      return loads(each.profile->gpu);
    });
    if (over.empty() || !IsLimited(link)) continue;
    const auto all = std::ranges::count_if(
        attached_, [&](const auto& each) { return loads(each.second.gpu); });
    // These ranks get a fraction of a link that other ranks use too.
    const auto these = static_cast<double>(over.size());
    const double part = these / std::max(static_cast<double>(all), these);
    resources.links.push_back(CapacityOf(link, part, std::move(over)));
  }
  return resources;
}

uint64_t JointPlanning::NodeOf(const plan::RankProfile& profile) const {
  return config_.gpus[profile.gpu.value()].numa.value();
}

Bytes JointPlanning::HostPromised(const Member& member,
                                  const std::map<Rank, plan::RankPlan>& plans,
                                  std::optional<uint64_t> numa) const {
  Bytes promised;
  for (const auto& [rank, plan] : plans) {
    const ProfileWithHash* read = FindOrNull(member.profiles, rank);
    if (read == nullptr) continue;
    const uint64_t node = NodeOf(*read->profile);
    if (numa.value_or(node) != node) continue;
    promised += RoundUp(plan.host_bytes, config_.granularity);
  }
  return promised;
}

Member::State JointPlanning::StateOf(const JobKey& job) const {
  const Member* member = FindOrNull(members_, job);
  return member != nullptr ? member->state : Member::State::kTrains;
}

Bytes JointPlanning::PromisedToOthers(PoolId pool, const JobKey& job) const {
  if (pool.kind == PoolKind::kGpu) return Bytes(0);
  return HostGrowth({pool.ordinal, nullptr, {job}});
}

Bytes JointPlanning::PromisedBeside(PoolId pool, const Principal& whose) const {
  if (pool.kind == PoolKind::kGpu) return Bytes(0);
  const auto is_own = [&](const Principal& who) {
    return who == whose || (whose.cgroup.empty() && who.uid == whose.uid);
  };
  std::set<JobKey> own;
  for (const auto& [session, rank] : attached_) {
    if (is_own(rank.job.principal)) own.insert(rank.job);
  }
  return HostGrowth({pool.ordinal, nullptr, own});
}

Bytes JointPlanning::DueOf(PoolId pool, const JobKey& job) const {
  const Member* member = FindOrNull(members_, job);
  if (pool.kind == PoolKind::kGpu || member == nullptr) return Bytes(0);
  return HostDue(pool.ordinal, job, *member);
}

Bytes JointPlanning::HostDue(std::optional<uint64_t> numa, const JobKey& job,
                             const Member& member) const {
  return std::max(
      HostPromised(member, member.ranks, numa) - ledger_.HostHeld(job, numa),
      Bytes(0));
}

Bytes JointPlanning::MemberGrowth(const Scope& scope) const {
  Bytes growth;
  for (const auto& [job, member] : members_) {
    // A training job has leased all that it needs, even if that is less than
    // its plan's host bytes, which are an upper bound.
    if (member.state == Member::State::kTrains || !scope.Has(job)) continue;
    growth += HostDue(scope.numa, job, member);
  }
  return growth;
}

Bytes JointPlanning::LeaseGrowth(const Scope& scope) const {
  Bytes growth;
  for (const PlaceInLine& place : line_.for_plans()) {
    const Waiter& lease = line_.waiters().at(place);
    const PoolId pool = lease.asked.pool;
    // MemberGrowth counts the leases of members that do not train yet.
    if (StateOf(lease.job) == Member::State::kTrains && scope.Has(lease.job) &&
        scope.numa.value_or(pool.ordinal) == pool.ordinal) {
      growth += lease.asked.size;
    }
  }
  return growth;
}

// Returns the limits of host memory for the jobs of a question: what they hold
// plus what is free or left to them. Memory that a living process frees stays
// with its principal. So on a NUMA node each principal also has its own limit,
// which its own waiting leases reduce.
std::vector<plan::HostLimit> JointPlanning::HostLimits(
    const std::vector<Position>& positions) const {
  std::set<JobKey> jobs;
  std::map<Principal, std::set<JobKey>> users;
  bool settled = true;
  for (const Position& each : positions) {
    jobs.insert(each.job);
    users[each.job.principal].insert(each.job);
    settled = settled && each.profile->settled;
  }
  // A rank may lease more than its plan states. Limits of NUMA nodes leave an
  // extent per rank for that, because it cannot be predicted how leases are cut
  // into extents, or how much a calibration needs. Limits of budgets leave a
  // granule, because leases are rounded up, or an extent if the device cannot
  // report that a process released memory: such memory stays charged, and is
  // leased again in the same pieces.
  const Bytes tail = config_.extent.host;
  const Bytes budget_tail = IsSimulated(config_.driver)
                                ? config_.granularity
                                : std::max(tail, config_.granularity);
  std::vector<plan::HostLimit> limits;
  const auto add = [&](std::string name, Bytes left, const std::set<JobKey>& of,
                       std::optional<uint64_t> numa) {
    if (left >= Limits::kUnlimited) return;
    for (const JobKey& job : of) left += ledger_.HostHeld(job, numa);
    auto ranks = Where(positions, [&](const Position& each) {
      const uint64_t node = NodeOf(*each.profile);
      return of.contains(each.job) && numa.value_or(node) == node;
    });
    // Leases of several jobs, or beside a waiting lease, cannot be predicted.
    if (jobs.size() > 1 || !line_.for_plans().empty()) {
      left -= (numa ? tail : budget_tail) * std::ssize(ranks);
    }
    limits.push_back(
        {std::move(name), std::max(left, Bytes(0)), std::move(ranks)});
  };
  for (const HostConfig& host : config_.hosts) {
    const uint64_t node = host.numa.value();
    const PoolId pool{PoolKind::kHost, node};
    const Bytes growth =
        settled ? Bytes(0) : MemberGrowth({node, nullptr, jobs});
    const Bytes anyones = ledger_.UsableByAnyone(pool);
    Bytes all = anyones - growth;
    for (const auto& [user, theirs] : users) {
      const Bytes leases =
          settled ? Bytes(0) : LeaseGrowth({node, &user, jobs});
      const Bytes usable = ledger_.UsableBy(pool, user) - leases;
      all += usable - anyones;
      if (users.size() == 1) break;
      add(fmt::format("host of NUMA node {} for user {}", node, user.uid),
          usable - growth, theirs, node);
    }
    add(fmt::format("host of NUMA node {}", node), all, jobs, node);
  }
  for (const auto& [user, theirs] : users) {
    Bytes left = ledger_.HostLeft(user);
    // If `left` becomes negative, jobs of the question must free memory.
    if (left < Limits::kUnlimited && !settled) {
      left -= HostGrowth({{}, &user, jobs});
    }
    add(fmt::format("host budget of user {}", user.uid), left, theirs, {});
  }
  for (const JobKey& job : jobs) {
    add(fmt::format("host budget of job {}", job.name), ledger_.HostLeft(job),
        {job}, {});
  }
  for (size_t i = 0; i < positions.size(); ++i) {
    const std::optional<Bytes> limit = positions[i].profile->host_limit;
    if (!limit) continue;
    limits.push_back(
        {fmt::format("host limit of rank {}", positions[i].rank.value()),
         *limit,
         {i}});
  }
  // Gives equal names a number: jobs of two principals, even of one user's
  // cgroups, may have the same name.
  std::map<std::string, int> names;
  for (plan::HostLimit& limit : limits) {
    const int n = ++names[limit.name];
    if (n > 1) limit.name += fmt::format(" #{}", n);
  }
  return limits;
}

// --- The size of profiles and plans in the saved state (daemon/state)

// For a rank, counts the larger of the profile it asks with and the profile it
// runs by, because its next plan replaces the second by the first. Also counts
// plans in use that belong to earlier profiles or to ranks that have left.
JointPlanning::KeptSizes JointPlanning::SizesOfKept() const {
  KeptSizes sizes;
  const auto add = [&](const JobKey& job, const Profiles& profiles) {
    for (const auto& [rank, read] : profiles) {
      size_t& size = sizes[{job, rank}];
      size = std::max(size, MostSaved(*read.profile));
    }
  };
  for (const auto& [job, member] : members_) add(job, member.profiles);
  for (const auto& [job, open] : rounds_.collecting) add(job, open.ranks);
  for (const Asking& each : joining_) add(each.job, each.profiles);
  for (const auto& [job, held] : held_) add(job, held.asking.profiles);
  for (const auto& [id, round] : rounds_.solving) {
    for (const Asking& each : round.asking) add(each.job, each.profiles);
  }
  for (const auto* plans : {&rounds_.current, &rounds_.promised}) {
    for (const auto& [job, plan] : *plans) {
      sizes[{job, std::nullopt}] += SizeOf(*rounds_.FindKept(plan)->plan);
    }
  }
  return sizes;
}

std::map<Principal, Bytes> JointPlanning::KeptProfiles() const {
  std::map<Principal, Bytes> users;
  for (const auto& [whose, size] : SizesOfKept()) {
    users[whose.first.principal] += Bytes(static_cast<int64_t>(size));
  }
  return users;
}

absl::Status JointPlanning::MaySubmit(SessionId session,
                                      const plan::RankProfile& profile) const {
  const AttachedRank& rank = attached_.at(session);
  if (profile.rank != rank.rank || profile.gpu != rank.gpu) {
    return absl::InvalidArgumentError(fmt::format(
        "the profile is of rank {} on GPU {}, but this session is rank {} on "
        "GPU {}",
        profile.rank.value(), profile.gpu.value(), rank.rank.value(),
        rank.gpu.value()));
  }
  const Principal& who = rank.job.principal;
  const auto size = static_cast<int64_t>(MostSaved(profile));
  int64_t own = 0, all = 0;
  for (const auto& [whose, kept] : SizesOfKept()) {
    if (whose == std::pair(rank.job, std::optional(rank.rank))) continue;
    all += static_cast<int64_t>(kept);
    if (whose.first.principal == who) own += static_cast<int64_t>(kept);
  }
  const Share share = {config_.profile_limit.each.count(),
                       config_.profile_limit.all.count()};
  if (own + size > share.each) {
    return absl::ResourceExhaustedError(fmt::format(
        "this profile and its plans may take {} bytes of the saved state; {} "
        "has {}, and the limit is {}: submit a profile of fewer classes or "
        "with shorter names, or end some jobs",
        size, Name(who), own, share.each));
  }
  if (all + size > share.all_for(own + size)) {
    return NoRoom(share, "bytes of profiles and plans in the saved state", all,
                  own + size);
  }
  return absl::OkStatus();
}

}  // namespace sluice::daemon

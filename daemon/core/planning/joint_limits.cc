// What the node has for a question: links and host memory.
#include <fmt/format.h>

#include <algorithm>

#include "daemon/core/links.h"
#include "daemon/core/planning/joint_planning.h"
#include "proto/base/grant_page.h"
#include "proto/base/simulated.h"

namespace sluice::daemon {
namespace {

// The speed of a direction that is not throttled, beside one that is: faster
// than any link, and within what a plan request may name (proto/plan).
constexpr double kOpenBytesPerSecond = 1e12;

// Positions for which `chosen` holds.
template <typename Chosen>
std::vector<size_t> Where(const std::vector<Position>& positions,
                          Chosen chosen) {
  std::vector<size_t> found;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (chosen(positions[i])) found.push_back(i);
  }
  return found;
}

// `part` of a link; nullopt if it limits no rank. A link that is throttled in
// one direction only still limits that one.
std::optional<plan::LinkCapacity> CapacityOf(const LinkSpeed& link,
                                             double part) {
  const auto share = [part](double speed) {
    return speed > 0 ? speed * part : kOpenBytesPerSecond;
  };
  if (!IsLimited(link)) return std::nullopt;
  plan::LinkCapacity capacity;
  capacity.name = link.name;
  capacity.h2d_bytes_per_second = share(SpeedOf(link, kH2d));
  capacity.d2h_bytes_per_second = share(SpeedOf(link, kD2h));
  if (link.both_bytes_per_second > 0) {
    capacity.both_bytes_per_second = share(link.both_bytes_per_second);
  }
  return capacity;
}

}  // namespace

plan::NodeResources JointPlanning::ResourcesFor(
    const std::vector<Position>& positions) const {
  std::map<std::string, int> on_link;
  for (const auto& [id, rank] : attached_) {
    const std::string& own = config_.gpus[rank.gpu.value()].link;
    for (const size_t i : LinkPath(config_.links, own)) {
      ++on_link[config_.links[i].name];
    }
  }
  plan::NodeResources resources;
  for (const LinkSpeed& link : config_.links) {
    std::vector<size_t> over = Where(positions, [&](const Position& each) {
      return Loads(config_.links, config_.gpus[each.profile->gpu.value()].link,
                   link.name);
    });
    if (over.empty()) continue;
    // Their part of a link that others use too.
    const double part = static_cast<double>(over.size()) /
                        std::max<double>(on_link[link.name], over.size());
    auto capacity = CapacityOf(link, part);
    if (!capacity.has_value()) continue;
    capacity->profiles = std::move(over);
    resources.links.push_back(*std::move(capacity));
  }
  const std::set<JobKey> jobs = JobsOf(positions);
  resources.hosts = NumaLimits(positions, jobs);
  for (plan::HostLimit& limit : BudgetLimits(positions, jobs)) {
    resources.hosts.push_back(std::move(limit));
  }
  for (size_t i = 0; i < positions.size(); ++i) {
    const plan::RankProfile& profile = *positions[i].profile;
    if (!profile.host_limit.has_value()) continue;
    resources.hosts.push_back(
        {fmt::format("host limit of rank {}", positions[i].rank.value()),
         *profile.host_limit,
         {i}});
  }
  // Jobs of two principals, or cgroups of one user, may have the same name.
  std::map<std::string, int> names;
  for (plan::HostLimit& limit : resources.hosts) {
    const int n = ++names[limit.name];
    if (n > 1) limit.name += fmt::format(" #{}", n);
  }
  return resources;
}

Bytes JointPlanning::HostPromised(const Member& member,
                                  const std::map<Rank, plan::RankPlan>& plans,
                                  std::optional<uint64_t> numa) const {
  Bytes promised;
  for (const auto& [rank, plan] : plans) {
    const auto read = member.profiles.find(rank);
    if (read == member.profiles.end()) continue;
    const uint64_t node =
        config_.gpus[read->second.profile->gpu.value()].numa.value();
    if (numa.value_or(node) != node) continue;
    promised += RoundUp(plan.host_bytes, config_.granularity);
  }
  return promised;
}

Bytes JointPlanning::HostGrowth(std::optional<uint64_t> numa,
                                const Principal* of,
                                const std::set<JobKey>& except) const {
  return MemberGrowth(numa, of, except) + LeaseGrowth(numa, of, except);
}

Bytes JointPlanning::HostPromisedBeside(uint64_t numa,
                                        const Principal& whose) const {
  const auto is_own = [&](const Principal& who) {
    return who == whose || (whose.cgroup.empty() && who.uid == whose.uid);
  };
  std::set<JobKey> own;
  for (const auto& [session, rank] : attached_) {
    if (is_own(rank.job.principal)) own.insert(rank.job);
  }
  return HostGrowth(numa, nullptr, own);
}

Bytes JointPlanning::HostDue(uint64_t numa, const JobKey& job) const {
  const auto member = members_.find(job);
  return member != members_.end() ? HostDue(numa, job, member->second)
                                  : Bytes(0);
}

Bytes JointPlanning::HostDue(std::optional<uint64_t> numa, const JobKey& job,
                             const Member& member) const {
  return std::max(
      HostPromised(member, member.ranks, numa) - ledger_.HostHeld(job, numa),
      Bytes(0));
}

Bytes JointPlanning::MemberGrowth(std::optional<uint64_t> numa,
                                  const Principal* of,
                                  const std::set<JobKey>& except) const {
  Bytes growth;
  for (const auto& [job, member] : members_) {
    // A plan's host bytes are an upper bound of what a rank leases.
    if (member.state == Member::State::kTrains || except.contains(job))
      continue;
    if (of && job.principal != *of) continue;
    growth += HostDue(numa, job, member);
  }
  return growth;
}

Bytes JointPlanning::LeaseGrowth(std::optional<uint64_t> numa,
                                 const Principal* of,
                                 const std::set<JobKey>& except) const {
  Bytes growth;
  for (const PlaceInLine& place : line_.for_plans()) {
    const Waiter& lease = line_.waiters().at(place);
    const JobKey& job = lease.job;
    // What a member's plan promised is in MemberGrowth.
    const auto member = members_.find(job);
    if ((member != members_.end() &&
         member->second.state != Member::State::kTrains) ||
        except.contains(job) || (of && job.principal != *of) ||
        numa.value_or(lease.asked.pool.ordinal) != lease.asked.pool.ordinal) {
      continue;
    }
    growth += lease.asked.size;
  }
  return growth;
}

// What jobs of one question may come to hold of each NUMA node: what they have
// and what is free. A living process' memory goes to no other principal even
// when it frees it, so each principal has a limit of its own beside that of
// all, and makes room for its own leases only.
std::vector<plan::HostLimit> JointPlanning::NumaLimits(
    const std::vector<Position>& positions,
    const std::set<JobKey>& jobs) const {
  std::map<Principal, std::set<JobKey>> principals;
  for (const JobKey& job : jobs) principals[job.principal].insert(job);
  std::vector<plan::HostLimit> limits;
  const auto add = [&](std::string name, Bytes bytes, NumaIndex numa,
                       const Principal* of) {
    auto ranks = Where(positions, [&](const Position& each) {
      return config_.gpus[each.profile->gpu.value()].numa == numa &&
             (!of || each.job.principal == *of);
    });
    // Where several jobs' leases are cut anew, the tails of extents and the
    // room of a calibration cannot be predicted.
    if (jobs.size() > 1 || !line_.for_plans().empty()) {
      bytes -= config_.extent.host * std::ssize(ranks);
    }
    limits.push_back(
        {std::move(name), std::max(bytes, Bytes(0)), std::move(ranks)});
  };
  for (const HostConfig& host : config_.hosts) {
    const uint64_t node = host.numa.value();
    const PoolId pool{PoolKind::kHost, node};
    const bool settled = IsSettled(positions);
    const Bytes growth = settled ? Bytes(0) : MemberGrowth(node, nullptr, jobs);
    const Bytes anyones = ledger_.UsableByAnyone(pool);
    Bytes all = anyones - growth;
    for (const auto& [principal, theirs] : principals) {
      Bytes held;
      for (const JobKey& job : theirs) held += ledger_.HostHeld(job, node);
      const Bytes usable = ledger_.UsableBy(pool, principal);
      const Bytes leases =
          settled ? Bytes(0) : LeaseGrowth(node, &principal, jobs);
      all += held + usable - anyones - leases;
      if (principals.size() == 1) break;
      add(fmt::format("host of NUMA node {} for user {}", node, principal.uid),
          held + usable - growth - leases, host.numa, &principal);
    }
    add(fmt::format("host of NUMA node {}", node), all, host.numa, nullptr);
  }
  return limits;
}

// What is left of a principal's budget beside what its other jobs will have.
Bytes JointPlanning::LeftBeside(const Principal& principal,
                                const std::vector<Position>& positions,
                                const std::set<JobKey>& jobs) const {
  const Bytes left = ledger_.HostLeft(principal);
  if (left >= Limits::kUnlimited || IsSettled(positions)) return left;
  // Less than nothing, where those of the question must give some back.
  return left - HostGrowth(std::nullopt, &principal, jobs);
}

// And within budgets.
std::vector<plan::HostLimit> JointPlanning::BudgetLimits(
    const std::vector<Position>& positions,
    const std::set<JobKey>& jobs) const {
  std::vector<plan::HostLimit> limits;
  // Leases are rounded up, plans are not. Where the device never says that a
  // process let go of memory, what it gave back stays charged and is leased
  // again as it was cut: up to an extent more than a plan says.
  const Bytes tail = IsSimulated(config_.driver)
                         ? config_.granularity
                         : std::max(config_.extent.host, config_.granularity);
  const auto add = [&](std::string name, Bytes left, const auto& mine) {
    if (left >= Limits::kUnlimited) return;
    plan::HostLimit limit{std::move(name), left, {}};
    for (const JobKey& job : jobs) {
      if (mine(job)) limit.bytes += ledger_.HostHeld(job, std::nullopt);
    }
    limit.profiles =
        Where(positions, [&](const Position& each) { return mine(each.job); });
    if (jobs.size() > 1 || !line_.for_plans().empty()) {
      limit.bytes -= tail * std::ssize(limit.profiles);
    }
    limit.bytes = std::max(limit.bytes, Bytes(0));
    limits.push_back(std::move(limit));
  };
  std::set<Principal> principals;
  for (const JobKey& job : jobs) principals.insert(job.principal);
  for (const Principal& principal : principals) {
    add(fmt::format("host budget of user {}", principal.uid),
        LeftBeside(principal, positions, jobs),
        [&](const JobKey& job) { return job.principal == principal; });
  }
  for (const JobKey& each : jobs) {
    add(fmt::format("host budget of job {}", each.name), ledger_.HostLeft(each),
        [&](const JobKey& job) { return job == each; });
  }
  return limits;
}

}  // namespace sluice::daemon

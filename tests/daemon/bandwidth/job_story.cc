#include "tests/daemon/bandwidth/job_story.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "proto/base/grant_page.h"
#include "proto/base/status.h"

namespace sluice::daemon::bandwidth {
namespace {

constexpr double kShortestPeriod = 0.04, kLongestPeriod = 2;  // seconds
constexpr double kRoundingBytes = 1;

double Size(const Demand& demand) {
  return static_cast<double>(demand.bytes.count());
}

// Returns whole milliseconds, so that sums of periods are exact.
absl::Duration Whole(double seconds) {
  return absl::Milliseconds(std::max<int64_t>(1, std::llround(seconds * 1e3)));
}

}  // namespace

JobStory::JobStory(JobStoryOptions options)
    : options_(std::move(options)),
      random_(options_.seed),
      node_(*Topology::Make(options_.links), options_.tick),
      weights_(node_.policy().topology().channels().size(), 0),
      promised_(weights_),
      entitled_until_(node_.now()) {}

double JobStory::Pick(double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random_);
}

double JobStory::PickExponential(double mean) {
  return std::exponential_distribution<double>(1 / mean)(random_);
}

void JobStory::At(absl::Time at, Action action) {
  events_.push({at, order_++, std::move(action)});
}

void JobStory::Later(int flow, absl::Time at,
                     std::function<void(Flow&)> action) {
  At(at, [this, flow, action = std::move(action)] {
    const auto found = flows_.find(flow);
    if (found != flows_.end()) action(found->second);
  });
}

JobStoryResult JobStory::Run() {
  At(node_.now(), [this] { Arrive(); });
  while (!events_.empty()) {
    const Event next = events_.top();
    events_.pop();
    node_.RunUntil(next.at, [this](int flow, const NodeSimulation::Copy& copy) {
      Done(flow, copy);
    });
    next.action();
  }
  result_.took = node_.now() - absl::UnixEpoch();
  return result_;
}

void JobStory::Arrive() {
  const int job = next_job_++;
  const int gpu =
      static_cast<int>(Pick(0, static_cast<double>(options_.gpu_links.size())));
  const int link = options_.gpu_links[gpu];
  const double speed = options_.links[link].h2d_bytes_per_second;
  Flow flow;
  const double kind = Pick(0, 1);
  flow.kind = kind < 0.5   ? Kind::kSteady
              : kind < 0.7 ? Kind::kGreedy
              : kind < 0.9 ? Kind::kPlain
                           : Kind::kLight;
  const double period =
      std::exp(Pick(std::log(kShortestPeriod), std::log(kLongestPeriod)));
  flow.demand.period = Whole(period);
  flow.demand.deadline = Whole(period * Pick(0.3, 1) - 0.001);
  flow.demand.bytes =
      Bytes(static_cast<int64_t>(Pick(0.03, 0.3) * period * speed));
  flow.weight = std::floor(Pick(1, 5));
  flow.parts = static_cast<int>(Pick(1, 5));
  const absl::Time end =
      node_.now() +
      Whole(PickExponential(absl::ToDoubleSeconds(options_.mean_life)));
  for (const int direction : {kH2d, kD2h}) {
    flow.id = 2 * job + direction;
    OpenFlow(flow, link, direction);
    At(end, [this, id = flow.id] { CloseFlow(id); });
  }
  if (next_job_ == options_.jobs) return;
  At(node_.now() +
         Whole(PickExponential(absl::ToDoubleSeconds(options_.mean_gap))),
     [this] { Arrive(); });
}

void JobStory::OpenFlow(const Flow& flow, int link, int direction) {
  Entitle();
  Flow& opened = flows_[flow.id] = flow;
  const Topology& topology = node_.policy().topology();
  opened.path = topology.PathOf(topology.channel_of(link, direction));
  opened.opened = node_.now();
  node_.Open(flow.id, link, direction, flow.weight);
  if (direction == kH2d) opened.weight *= BandwidthPolicy::kPrefetchFirst;
  for (const int channel : opened.path) weights_[channel] += opened.weight;
  if (flow.kind == Kind::kSteady || flow.kind == Kind::kGreedy) {
    ++result_.asked;
    opened.promised = options_.promises && Admit(opened);
    if (opened.promised) ++result_.admitted;
    if (!opened.promised && flow.kind == Kind::kGreedy) {
      opened.kind = Kind::kPlain;
    }
  }
  Begin(opened);
}

bool JobStory::Admit(const Flow& flow) {
  const std::vector<Channel>& channels = node_.policy().topology().channels();
  const double rate = flow.demand.rate();
  for (const int each : flow.path) {
    const double most = options_.promised * channels[each].capacity;
    if (promised_[each] + rate > most) return false;
  }
  for (const int each : flow.path) promised_[each] += rate;
  node_.policy().Promise(flow.id, rate);
  return true;
}

void JobStory::Begin(Flow& flow) {
  if (flow.kind == Kind::kSteady || flow.kind == Kind::kLight) {
    NextStep(flow);
    return;
  }
  KeepBusy(flow);
  if (flow.kind == Kind::kGreedy) JudgeBudget(flow, 0);
}

void JobStory::NextStep(Flow& flow) {
  for (int part = 0; part < flow.parts; ++part) {
    Later(flow.id, node_.now() + part * (flow.demand.period / flow.parts),
          [this, part](Flow& f) { CopyPart(f, part); });
  }
  Later(flow.id, node_.now() + flow.demand.period + Whole(Pick(0, 0.02)),
        [this](Flow& f) { NextStep(f); });
}

void JobStory::CopyPart(Flow& flow, int part) {
  // The parts add up to the demand exactly.
  const double bytes = std::floor(Size(flow.demand) * (part + 1) / flow.parts) -
                       std::floor(Size(flow.demand) * part / flow.parts);
  node_.Ask(flow.id, bytes, node_.now() + flow.demand.deadline);
}

void JobStory::KeepBusy(Flow& flow) {
  const double copy = flow.kind == Kind::kGreedy ? Size(flow.demand) / 2
                                                 : Size(flow.demand) / 4;
  const double wanted = flow.kind == Kind::kGreedy ? 4 * copy : 2 * copy;
  while (node_.backlog(flow.id) < wanted - kRoundingBytes)
    node_.Ask(flow.id, copy);
}

// A budget is the demand's bytes of one period. By the deadline of period n the
// flow must have copied n + 1 budgets.
void JobStory::JudgeBudget(Flow& flow, int64_t period) {
  const absl::Time due =
      flow.opened + period * flow.demand.period + flow.demand.deadline;
  Later(flow.id, due, [this, period](Flow& f) {
    ++result_.budgets;
    const double least = static_cast<double>(period + 1) * Size(f.demand);
    if (node_.copied(f.id) < least - kRoundingBytes) ++result_.budgets_short;
    JudgeBudget(f, period + 1);
  });
}

void JobStory::Done(int id, const NodeSimulation::Copy& copy) {
  Flow& flow = flows_.at(id);
  if (flow.kind == Kind::kGreedy || flow.kind == Kind::kPlain) KeepBusy(flow);
  if (!Judged(flow)) return;
  ++result_.due;
  if (!copy.late()) return;
  ++result_.late;
  result_.latest = std::max(result_.latest, copy.done - copy.due);
}

bool JobStory::Judged(const Flow& flow) const {
  return flow.kind == Kind::kSteady && (flow.promised || !options_.promises);
}

void JobStory::CloseFlow(int id) {
  Entitle();
  const Flow& flow = flows_.at(id);
  if (Judged(flow)) {  // a copy that never ended is late, too
    result_.due += node_.overdue(id);
    result_.late += node_.overdue(id);
  }
  for (const int channel : flow.path) weights_[channel] -= flow.weight;
  result_.longest_wait = std::max(result_.longest_wait, node_.longest_wait(id));
  for (const int channel : flow.path) {
    if (flow.promised) promised_[channel] -= flow.demand.rate();
  }
  if (flow.kind == Kind::kPlain &&
      node_.now() - flow.opened >= absl::Seconds(kLongestPeriod)) {
    ++result_.plain;
    result_.least_share =
        std::min(result_.least_share, node_.copied(id) / flow.entitled);
  }
  flows_.erase(id);
  node_.Close(id);
}

// Adds to each flow's `entitled` its weighted share, since the last call, of
// the bandwidth that is never promised.
void JobStory::Entitle() {
  const double seconds = absl::ToDoubleSeconds(node_.now() - entitled_until_);
  entitled_until_ = node_.now();
  const std::vector<Channel>& channels = node_.policy().topology().channels();
  for (auto& [id, flow] : flows_) {
    double rate = kUnlimited;
    for (const int channel : flow.path) {
      rate = std::min(
          rate, channels[channel].capacity * flow.weight / weights_[channel]);
    }
    flow.entitled += seconds * rate * (1 - options_.promised);
  }
}

}  // namespace sluice::daemon::bandwidth

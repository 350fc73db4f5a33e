#include "tests/daemon/bandwidth/node_simulation.h"

#include <algorithm>
#include <utility>

#include "proto/base/status.h"

namespace sluice::daemon::bandwidth {
namespace {

// A tolerance in bytes, because shares are not whole numbers.
constexpr double kRounding = 0.5;

}  // namespace

NodeSimulation::NodeSimulation(Topology topology, absl::Duration tick)
    : policy_(std::move(topology)),
      tick_(tick),
      carried_(policy_.topology().channels().size(), 0) {}

void NodeSimulation::Open(int flow, int link, int direction, double weight) {
  policy_.Open(flow, link, direction, weight);
  const Topology& topology = policy_.topology();
  lines_[flow].path = topology.PathOf(topology.channel_of(link, direction));
}

void NodeSimulation::Close(int flow) {
  policy_.Close(flow);
  lines_.erase(flow);
}

void NodeSimulation::Ask(int flow, double bytes, absl::Time due) {
  Line& line = lines_.at(flow);
  if (line.backlog <= kRounding) line.last_byte = now_;
  line.copies.push_back({bytes, now_, due});
  line.backlog += bytes;
  policy_.SetWanted(flow, line.backlog);
}

int NodeSimulation::overdue(int flow) const {
  const std::deque<Copy>& copies = lines_.at(flow).copies;
  return static_cast<int>(
      std::count_if(copies.begin(), copies.end(),
                    [this](const Copy& copy) { return copy.due < now_; }));
}

absl::Duration NodeSimulation::longest_wait(int flow) const {
  const Line& line = lines_.at(flow);
  if (line.backlog <= kRounding) return line.longest_wait;
  return std::max(line.longest_wait, now_ - line.last_byte);
}

void NodeSimulation::RunUntil(absl::Time until, const OnDone& on_done) {
  while (now_ < until) {
    Step(std::min(tick_, until - now_), on_done);
  }
}

void NodeSimulation::Step(absl::Duration window, const OnDone& on_done) {
  const std::map<int, double> given = policy_.Share(now_, window);
  now_ += window;
  std::vector<double> loads(carried_.size(), 0);
  std::vector<std::pair<int, Copy>> done;
  for (const auto& [flow, bytes] : given) {
    Line& line = lines_.at(flow);
    for (const int channel : line.path) loads[channel] += bytes;
    line.copied += bytes;
    line.backlog -= bytes;
    line.done_of_first += bytes;
    line.longest_wait = std::max(line.longest_wait, now_ - line.last_byte);
    line.last_byte = now_;
    while (!line.copies.empty() &&
           line.done_of_first >= line.copies.front().bytes - kRounding) {
      line.done_of_first -= line.copies.front().bytes;
      line.copies.front().done = now_;
      done.emplace_back(flow, line.copies.front());
      line.copies.pop_front();
    }
  }
  CheckWindow(loads, window);
  for (size_t i = 0; i < loads.size(); ++i) carried_[i] += loads[i];
  policy_.CheckInvariants();
  if (!on_done) return;
  for (const auto& [flow, copy] : done) on_done(flow, copy);
}

void NodeSimulation::CheckWindow(const std::vector<double>& loads,
                                 absl::Duration window) const {
  const std::vector<Channel>& channels = policy_.topology().channels();
  const double seconds = absl::ToDoubleSeconds(window);
  for (size_t i = 0; i < loads.size(); ++i) {
    SLUICE_CHECK(loads[i] <= channels[i].capacity * seconds + kRounding);
  }
  for (const auto& [flow, line] : lines_) {
    if (line.backlog <= kRounding) continue;
    SLUICE_CHECK(
        std::any_of(line.path.begin(), line.path.end(), [&](int channel) {
          return loads[channel] >=
                 channels[channel].capacity * seconds - kRounding;
        }));
  }
}

}  // namespace sluice::daemon::bandwidth

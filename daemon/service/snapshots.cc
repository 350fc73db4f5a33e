#include "daemon/service/snapshots.h"

#include <utility>

#include "proto/base/status.h"
#include "proto/wire.h"

namespace sluice::daemon {
namespace {

absl::Status Pack(std::string text, Snapshots::Answer& answer) {
  if (text.size() <= Snapshots::kMaxInline) {
    answer.text = std::move(text);
    return absl::OkStatus();
  }
  SLUICE_ASSIGN_OR_RETURN(UniqueFd fd, wire::ToMemfd("sluice snapshot", text));
  answer.memfd = std::make_shared<const UniqueFd>(std::move(fd));
  return absl::OkStatus();
}

}  // namespace

Snapshots::Snapshots(Loop* loop, const Clock* clock, Take take, Render render)
    : loop_(loop),
      clock_(clock),
      take_(std::move(take)),
      render_(std::move(render)),
      render_thread_("render") {}

void Snapshots::Ask(const View& view, Got got) {
  Lane& lane = lanes_[view.principal ? int64_t{view.principal->uid} : -1];
  std::vector<Got>& waiting = lane.waiting[view];
  if (waiting.empty()) lane.order.push_back(view);
  waiting.push_back(std::move(got));
  if (posted_ || clock_->Now() < next_at_) return;
  // By the loop's next turn: with all that ask in this one.
  posted_ = true;
  loop_->Post([this] {
    posted_ = false;
    Expire();
  });
}

absl::Time Snapshots::deadline() const {
  return lanes_.empty() || posted_ ? absl::InfiniteFuture() : next_at_;
}

void Snapshots::Expire() {
  if (!lanes_.empty() && clock_->Now() >= next_at_) TakeNext();
}

void Snapshots::Clear() { lanes_.clear(); }

void Snapshots::TakeNext() {
  auto lane = lanes_.lower_bound(next_lane_);
  if (lane == lanes_.end()) lane = lanes_.begin();
  next_lane_ = lane->first + 1;
  const View view = lane->second.order.front();
  lane->second.order.pop_front();
  const auto gots = std::make_shared<std::vector<Got>>(
      std::move(lane->second.waiting.extract(view).mapped()));
  if (lane->second.order.empty()) lanes_.erase(lane);

  const absl::Time start = clock_->Now();
  Answer answer{std::make_shared<const Snapshot>(take_(view)), "", nullptr};
  const absl::Time end = clock_->Now();
  next_at_ = end + (end - start) * (1 / kShare - 1);
  if (!view.text) {
    for (const Got& got : *gots) got(answer);
    return;
  }
  render_thread_.Run([this, gots, answer]() mutable {
    absl::StatusOr<Answer> rendered = answer;
    const absl::Status packed = Pack(render_(*answer.data), *rendered);
    if (!packed.ok()) rendered = packed;
    loop_->Post([gots, rendered = std::move(rendered)] {
      for (const Got& got : *gots) got(rendered);
    });
  });
}

}  // namespace sluice::daemon

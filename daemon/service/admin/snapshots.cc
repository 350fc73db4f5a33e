#include "daemon/service/admin/snapshots.h"

#include <utility>

#include "proto/base/status.h"
#include "proto/wire.h"

namespace sluice::daemon {

Snapshots::Snapshots(Loop* loop, const Clock* clock, Take take, Render render)
    : loop_(loop),
      clock_(clock),
      take_(std::move(take)),
      render_(std::move(render)),
      render_thread_("render", TaskThread::Priority::kBehindTheLoop) {}

absl::StatusOr<Snapshots::Answer> Snapshots::Rendered(Answer answer) const {
  answer.text = render_(*answer.data);
  if (answer.text.size() > kMaxInline) {
    SLUICE_ASSIGN_OR_RETURN(
        answer.memfd, ToShared(wire::ToMemfd("sluice snapshot", answer.text)));
    answer.text.clear();
  }
  return answer;
}

void Snapshots::Ask(const View& view, Got got) {
  std::vector<Got>& waiting = waiting_[view];
  if (waiting.empty()) queue_.Push(view.principal, view);
  waiting.push_back(std::move(got));
  if (posted_ || clock_->Now() < next_at_) return;
  // Posted, so that all queries of this turn of the loop share the snapshot.
  posted_ = true;
  loop_->Post([this] {
    posted_ = false;
    Expire();
  });
}

absl::Time Snapshots::deadline() const {
  return queue_.empty() || posted_ ? absl::InfiniteFuture() : next_at_;
}

void Snapshots::Clear() {
  queue_.Remove([](const View&) { return true; });
  waiting_.clear();
}

void Snapshots::Expire() {
  if (queue_.empty() || clock_->Now() < next_at_) return;
  const View view = queue_.Pop()->second;
  const auto gots = std::make_shared<std::vector<Got>>(
      std::move(waiting_.extract(view).mapped()));

  const absl::Time start = clock_->Now();
  Answer answer{std::make_shared<const Snapshot>(take_(view)), "", nullptr};
  const absl::Time end = clock_->Now();
  queue_.Spent(view.principal, end - start);
  next_at_ = end + (end - start) * (1 / kShare - 1);
  if (!view.text) {
    for (const Got& got : *gots) got(answer);
    return;
  }
  render_thread_.Run([this, gots, answer] {
    const auto shared =
        std::make_shared<const absl::StatusOr<Answer>>(Rendered(answer));
    loop_->Post([this, gots, shared] { Deliver(gots, 0, shared); });
  });
}

// Sends answers in parts: thousands of queries may wait for one snapshot, and
// other requests are served in between.
void Snapshots::Deliver(
    const std::shared_ptr<const std::vector<Got>>& gots, size_t next,
    const std::shared_ptr<const absl::StatusOr<Answer>>& answer) {
  const absl::Time until = clock_->Now() + kDelivery;
  while (next < gots->size() && clock_->Now() < until) {
    (*gots)[next++](*answer);
  }
  if (next == gots->size()) return;
  loop_->Post([this, gots, next, answer] { Deliver(gots, next, answer); });
}

}  // namespace sluice::daemon

// Snapshots of the node's state, at a bounded cost to the loop.
//
// A snapshot is taken on the loop's thread and rendered on another. All queries
// for the same view that wait by then share it, so an answer is never older
// than its query. Snapshots take at most the fraction kShare of the loop's
// time: after one that took t, the next waits for 9 t. Users share this time
// fairly (quota/fair_queue.h).
//
// Thread safety: loop's thread only.
#pragma once

#include <compare>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/node/types.h"
#include "daemon/core/snapshot.h"
#include "daemon/quota/fair_queue.h"
#include "daemon/service/threads/loop.h"
#include "daemon/service/threads/task_thread.h"
#include "proto/base/clock.h"
#include "proto/base/unique_fd.h"

namespace sluice::daemon {

class Snapshots {
 public:
  static constexpr double kShare = 0.1;
  static constexpr absl::Duration kDelivery = absl::Microseconds(500);
  // A longer answer is sent as a memfd.
  static constexpr size_t kMaxInline = 32 << 10;

  struct View {
    std::optional<Principal> principal;  // unset: everything
    bool observer = false;  // the viewer's own session is not counted
    bool text = false;      // true: rendered as text; false: data only
    auto operator<=>(const View&) const = default;
  };
  struct Answer {
    std::shared_ptr<const Snapshot> data;
    std::string text;  // if short
    SharedFd memfd;    // if long
  };
  using Got = std::function<void(const absl::StatusOr<Answer>&)>;
  using Take = std::function<Snapshot(const View&)>;
  using Render = std::function<std::string(const Snapshot&)>;

  // `loop` and `clock` must outlive this; `take` and `got` run on the loop.
  Snapshots(Loop* loop, const Clock* clock, Take take, Render render);

  void Ask(const View& view, Got got);
  absl::Time deadline() const;
  void Expire();
  void Clear();
  // Ends rendering. Returns false if it still runs after `patience`.
  bool Finish(absl::Duration patience) {
    return render_thread_.Finish(patience);
  }

 private:
  // Runs on the render thread.
  absl::StatusOr<Answer> Rendered(Answer answer) const;
  void Deliver(const std::shared_ptr<const std::vector<Got>>& gots, size_t next,
               const std::shared_ptr<const absl::StatusOr<Answer>>& answer);

  Loop* loop_;
  const Clock* clock_;
  const Take take_;
  const Render render_;
  // One queue per user; the key nullopt is the daemon itself.
  FairQueue<std::optional<Principal>, View> queue_;
  std::map<View, std::vector<Got>> waiting_;  // queries of the views in queue_
  absl::Time next_at_ = absl::InfinitePast();
  bool posted_ = false;
  TaskThread render_thread_;  // last: its tasks use the others
};

}  // namespace sluice::daemon

#include "client/train/watch/step_tracker.h"

#include <algorithm>

namespace sluice::train {
namespace {

bool Has(std::string_view kind, std::string_view part) {
  return kind.find(part) != std::string_view::npos;
}

// Returns the kind without ".full" or ".tail".
std::string_view Base(std::string_view kind) {
  if (kind.ends_with(".full") || kind.ends_with(".tail")) kind.remove_suffix(5);
  return kind;
}

}  // namespace

StepTracker::StepTracker(int64_t layers, int64_t chunks, SegmentCosts costs)
    : layers_(layers), chunks_(chunks), costs_(std::move(costs)) {
  for (const auto& [kind, cost] : costs_) {
    total_ += cost.seconds * static_cast<double>(cost.executions);
  }
}

void StepTracker::BeginStep(int64_t sequences) {
  sequences_ = std::max<int64_t>(sequences, 1);
  BeginSequence(0);
}

void StepTracker::BeginSequence(int64_t index) {
  sequence_ = index;
  begun_.clear();
  done_ = 0;
  place_ = {};
}

void StepTracker::Began(std::string_view kind) {
  const std::string_view base = Base(kind);
  // These do not run once per chunk; they keep the place of the kind before.
  if (Has(base, "offdiagonal") || Has(base, "recompute")) return;
  auto begun = begun_.find(base);
  if (begun == begun_.end()) begun = begun_.emplace(base, 0).first;
  const int64_t before = begun->second++;
  const int64_t chunks = std::max<int64_t>(chunks_, 1);
  place_.backward = Has(base, "backward");
  // The loss takes several small chunks at once.
  place_.chunk = base.starts_with("loss") ? -1 : before % chunks;
  const int64_t nth = before / chunks;
  const bool outside = base.starts_with("embed") || base.starts_with("loss");
  place_.layer = outside           ? -1
                 : place_.backward ? std::max<int64_t>(layers_ - 1 - nth, 0)
                                   : nth;
}

void StepTracker::Ended(std::string_view kind) {
  const auto cost = costs_.find(kind);
  if (cost != costs_.end()) done_ += cost->second.seconds;
}

double StepTracker::fraction() const {
  if (total_ <= 0) return 0;
  const double done =
      static_cast<double>(sequence_) + std::min(done_ / total_, 1.0);
  return std::clamp(done / static_cast<double>(sequences_), 0.0, 1.0);
}

}  // namespace sluice::train

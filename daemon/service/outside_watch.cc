#include "daemon/service/outside_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <memory>
#include <utility>

#include "daemon/service/log/log.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

PoolId PoolOf(device::Placement where) {
  const bool is_gpu = where.kind == device::Placement::Kind::kGpu;
  return {is_gpu ? PoolKind::kGpu : PoolKind::kHost, where.ordinal};
}

}  // namespace

OutsideWatch::OutsideWatch(device::Driver* driver, const NodeConfig& node,
                           Loop* loop, std::function<void(HeldOutside)> known)
    : driver_(driver),
      loop_(loop),
      known_(std::move(known)),
      answers_(node, /*exact=*/driver->TellsHolders()),
      thread_("outside", TaskThread::Priority::kBehindTheLoop) {
  for (const GpuConfig& gpu : node.gpus) gpus_.push_back(gpu.index);
}

absl::StatusOr<OutsideAnswers::Answer> OutsideWatch::AskDevice() const {
  OutsideAnswers::Answer answer{.held = {}, .at = loop_->now()};
  SLUICE_ASSIGN_OR_RETURN(const auto places, driver_->HeldOutside());
  for (const auto& [where, held] : places) {
    answer.held.emplace(PoolOf(where), held);
  }
  if (driver_->TellsHolders()) return answer;
  for (const DeviceIndex gpu : gpus_) {
    const auto where = device::Placement::Gpu(gpu);
    if (places.contains(where)) continue;
    const absl::Status why = driver_->Usage(where).status();
    // A GPU that answers again by now keeps its figure until the next answer.
    answer.held.emplace(PoolOf(where),
                        why.ok() ? absl::UnavailableError("no answer") : why);
  }
  return answer;
}

OutsideWatch::Answer OutsideWatch::Ask() const {
  // CPU time counts, because waiting takes nothing from other work.
  const absl::Duration before = CpuTimeOfThisThread();
  auto held = AskDevice();
  return {std::move(held), CpuTimeOfThisThread() - before};
}

void OutsideWatch::Start() {
  const auto promise = std::make_shared<std::promise<Answer>>();
  auto first = promise->get_future();
  thread_.Run([this, promise] { promise->set_value(Ask()); });
  if (first.wait_for(absl::ToChronoMilliseconds(kFirst)) ==
      std::future_status::ready) {
    return Tell(first.get());
  }
  WriteLog(LogLevel::kWarning,
           "what is held outside leases is not known yet: it counts as free "
           "until the device has answered");
  AskAfter(absl::ZeroDuration());
}

void OutsideWatch::AskAfter(absl::Duration delay) {
  if (std::exchange(asking_, true)) return;
  thread_.RunAfter(
      delay, [this] { loop_->Post([this, answer = Ask()] { Tell(answer); }); });
}

void OutsideWatch::Say(const std::string& place, const absl::Status& failure) {
  if (failure.ok()) {
    fails_.erase(place);
  } else if (fails_.insert(place).second) {
    WriteLog(LogLevel::kWarning,
             fmt::format("what is held outside leases{}{} is not known, and "
                         "counts as it did: {}",
                         place.empty() ? "" : " of ", place,
                         std::string(failure.message())));
  }
}

void OutsideWatch::Tell(const Answer& answer) {
  asking_ = false;
  Say("", answer.held.status());
  if (answer.held.ok()) {
    for (const auto& [pool, held] : answer.held->held) {
      Say(Name(pool), held.status());
    }
    HeldOutside held = answers_.Add(*answer.held);
    held_ = !held.pools.empty();
    known_(std::move(held));
  }
  if (held_ || !driver_->TellsHolders()) {
    AskAfter(std::max(kAskEvery, 50 * answer.cpu_time));
  }
}

}  // namespace sluice::daemon

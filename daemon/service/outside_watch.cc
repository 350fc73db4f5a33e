#include "daemon/service/outside_watch.h"

#include <time.h>

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "daemon/service/log/log.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// Of this thread: what it waits for costs nobody anything.
absl::Duration CpuTime() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

}  // namespace

OutsideWatch::OutsideWatch(device::Driver* driver, const NodeConfig& node,
                           Loop* loop, const Clock* clock,
                           std::function<void(HeldOutside)> known)
    : driver_(driver),
      loop_(loop),
      clock_(clock),
      known_(std::move(known)),
      thread_("outside", TaskThread::Priority::kBehindTheLoop) {
  for (const GpuConfig& gpu : node.gpus) {
    places_[device::Placement::Gpu(gpu.index)] = {
        {PoolKind::kGpu, gpu.index.value()}, gpu.pool, gpu.spare};
  }
  for (const HostConfig& host : node.hosts) {
    places_[device::Placement::Host(host.numa)] = {
        {PoolKind::kHost, host.numa.value()}, host.pool, host.spare};
  }
}

absl::StatusOr<HeldOutside> OutsideWatch::AskDevice() const {
  HeldOutside held{.pools = {}, .at = clock_->Now()};
  SLUICE_ASSIGN_OR_RETURN(const auto places, driver_->HeldOutside());
  for (const auto& [where, bytes] : places) {
    const auto place = places_.find(where);
    if (place == places_.end()) continue;
    const Place& to = place->second;
    const Bytes beyond = std::min(bytes - to.spare, to.total);
    if (beyond > Bytes(0)) held.pools[to.pool] = beyond;
  }
  return held;
}

OutsideWatch::Answer OutsideWatch::Ask() const {
  const absl::Duration before = CpuTime();
  auto held = AskDevice();
  return {std::move(held), CpuTime() - before};
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
           "what processes without a session hold is not known yet: it counts "
           "as free until the device has answered");
  AskAfter(absl::ZeroDuration());
}

void OutsideWatch::GoOn() { AskAfter(kAskEvery); }

void OutsideWatch::AskAfter(absl::Duration delay) {
  if (asking_) return;
  asking_ = true;
  thread_.RunAfter(
      delay, [this] { loop_->Post([this, answer = Ask()] { Tell(answer); }); });
}

HeldOutside OutsideWatch::Lasting(HeldOutside held) {
  if (driver_->TellsHolders()) return held;
  const std::optional<HeldOutside> before = std::exchange(before_, held);
  if (!before.has_value()) return held;
  for (auto& [pool, bytes] : held.pools) {
    const auto then = before->pools.find(pool);
    const Bytes least = then != before->pools.end() ? then->second : Bytes(0);
    bytes = std::min(bytes, least);
  }
  std::erase_if(held.pools,
                [](const auto& each) { return each.second == Bytes(0); });
  return held;
}

void OutsideWatch::Say(const absl::Status& failure) {
  if (!std::exchange(fails_, !failure.ok()) && !failure.ok()) {
    WriteLog(LogLevel::kWarning,
             "what processes without a session hold is not known: " +
                 std::string(failure.message()));
  }
}

void OutsideWatch::Tell(Answer answer) {
  asking_ = false;
  Say(answer.held.status());
  if (answer.held.ok()) {
    HeldOutside held = Lasting(*std::move(answer.held));
    held_ = !held.pools.empty();
    known_(std::move(held));
  }
  if (held_ || !driver_->TellsHolders()) {
    AskAfter(std::max(kAskEvery, 50 * answer.cpu_time));
  }
}

}  // namespace sluice::daemon

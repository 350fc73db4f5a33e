#include "tests/daemon/core/effect_text.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "proto/base/grant_page.h"

namespace sluice::daemon {
namespace {

class EffectWriter {
 public:
  std::string Take() { return std::move(text_); }

  void operator()(const MakeExtent& e) {
    Add("make {} {} {}", e.id.value(), Name(e.pool), e.size.count());
  }
  void operator()(const DestroyExtent& e) { Add("destroy {}", e.id.value()); }
  void operator()(const AskHolders& e) {
    for (ExtentId id : e.extents) Add("ask {}", id.value());
  }
  void operator()(const SendReply& e) {
    Add("reply {} {}", e.session.value(), e.request.value());
    std::visit(*this, e.reply);
  }
  void operator()(const SendNotice& e) {
    Add("notice {}", e.session.value());
    std::visit(*this, e.notice);
  }
  void operator()(const CloseSocket& e) { Add("close {}", e.session.value()); }
  void operator()(const Forget& e) { Add("forget {}", e.session.value()); }
  void operator()(const KillProcess& e) { Add("kill {}", e.session.value()); }
  void operator()(const AttachGrants& e) {
    Add("attach {} {} {} {}", e.session.value(), e.slot, e.gpu.value(),
        e.weight);
  }
  void operator()(const DetachGrants& e) { Add("detach {}", e.slot); }
  void operator()(const HoldsMemory& e) { Add("holds {} {}", e.slot, e.holds); }
  void operator()(const PromiseCopies& e) {
    Add("promise {} {} {}", e.slot, e.rates[kH2d], e.rates[kD2h]);
  }
  void operator()(const UseLinks& e) {
    for (const LinkSpeed& link : e.links) {
      Add("use {} {} {} {}", link.name, link.h2d_bytes_per_second,
          link.d2h_bytes_per_second, link.both_bytes_per_second);
    }
  }
  void operator()(const ReadProfile& e) {
    Add("read {} {}", e.session.value(), e.request.value());
  }
  void operator()(const SolvePlan& e) {
    Add("solve {}", e.round.value());
    for (size_t i = 0; i < e.profiles.size(); ++i) {
      Add("profile {} {} {}", e.jobs[i], e.profiles[i]->rank.value(),
          e.profiles[i]->gpu.value());
    }
    for (const plan::LinkCapacity& link : e.resources.links) {
      Add("link {} {} {} {}", link.name, link.h2d_bytes_per_second,
          link.d2h_bytes_per_second, link.both_bytes_per_second.value_or(0));
    }
    for (const plan::HostLimit& host : e.resources.hosts) {
      Add("host {} {}", host.name, host.bytes.count());
    }
  }
  void operator()(const StopSolving& e) { Add("stop {}", e.round.value()); }
  void operator()(const HurrySolving& e) { Add("hurry {}", e.round.value()); }

  void operator()(const absl::Status& why) { Add("{}", why.ToString()); }
  void operator()(const WelcomeReply& r) { Add("welcome {}", r.grant_slot); }
  void operator()(const GrantedReply& r) {
    Add("granted {}", r.lease.value());
    for (const Slice& slice : r.slices) {
      Add("slice {} {}", slice.id.value(), slice.size.count());
    }
  }
  void operator()(const FreedReply&) { Add("freed"); }
  void operator()(const SubmittedReply& r) {
    Add("submitted {}", r.waiting_for);
  }
  void operator()(const NotedReply&) { Add("noted"); }
  void operator()(const SnapshotReply& r) {
    Add("snapshot {}", r.plan.value());
  }

  void operator()(const PeerDiedNotice& n) { Add("died {}", n.reason); }
  void operator()(const EvictedNotice& n) { Add("evicted {}", n.reason); }
  void operator()(const PlanReadyNotice& n) { Add("ready {}", n.plan.value()); }
  void operator()(const PlanChangedNotice& n) {
    Add("changed {}", n.plan.value());
  }
  void operator()(const PlanFailedNotice& n) { Add("failed {}", n.reason); }
  void operator()(const ShuttingDownNotice& n) { Add("down {}", n.reason); }
  void operator()(const TakenOverNotice& n) {
    Add("taken over {}", n.plan.value());
  }
  void operator()(const LeaseProgressNotice& n) {
    Add("made {} of {}", n.made.count(), n.size.count());
  }

 private:
  template <typename... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    text_ += fmt::format(format, std::forward<Args>(args)...) + "\n";
  }
  std::string text_;
};

}  // namespace

std::string EffectText(const Effects& effects) {
  EffectWriter writer;
  for (const Effect& effect : effects) std::visit(writer, effect);
  return writer.Take();
}

}  // namespace sluice::daemon

#include "client/train/announce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "client/train/launch/private_daemon.h"
#include "client/train/watch/banner.h"
#include "client/train/watch/rank_watch.h"

namespace sluice::train {
namespace {

// The expected seconds of a step; zeros if nothing was calibrated.
struct Expected {
  double compute_s = 0, copy_s = 0;
  double seconds() const { return std::max(compute_s, copy_s); }
};

int64_t SequencesOf(const RunOptions& o) { return o.batch * o.accumulate; }

Expected ExpectedOf(const StepperContext& context, const Stepper& stepper) {
  const runtime::SavedPlan* saved = stepper.saved_plan();
  const plan::RankPlan* own = stepper.own_plan();
  if (saved == nullptr || own == nullptr) return {};
  const client::NodeLimits limits = context.memory->session().limits();
  const auto sequences = static_cast<double>(SequencesOf(*context.options));
  return {
      sequences * ComputeSeconds(saved->profile),
      sequences * CopySeconds(saved->profile, *own, limits.h2d_bytes_per_second,
                              limits.d2h_bytes_per_second)};
}

BannerFacts FactsOf(const StepperContext& context, const Stepper& stepper) {
  const RunOptions& o = *context.options;
  const client::NodeLimits limits = context.memory->session().limits();
  const Expected expected = ExpectedOf(context, stepper);
  BannerFacts f;
  f.model = o.model;
  f.dtype = Name(o.dtype);
  f.method = Name(o.method);
  f.attention = context.memory->KernelName(runtime::TorchType(o.dtype),
                                           o.model.head_dim());
  f.ranks = context.environment->world_size;
  f.seq_len = o.seq_len;
  f.sequences = SequencesOf(o);
  f.gpu = fmt::format("GPU {}", context.memory->gpu().value());
  f.leased = context.memory->size();
  f.gpu_total = limits.gpu_total;
  f.asked = o.hbm.count() > 0;
  f.used = context.memory->allocator().stats().used;
  f.host = stepper.host_bytes();
  f.host_asked = o.host.count() > 0;
  f.host_limit = f.host_asked ? o.host / context.environment->local_world_size
                              : limits.host_total;
  f.compute_s = expected.compute_s;
  f.copy_s = expected.copy_s;
  if (const plan::RankPlan* own = stepper.own_plan()) {
    f.chunk = o.chunk;
    f.rerun_chunks = o.rerun_chunks;
    f.rerun_layers = o.rerun_layers;
    f.classes = own->classes;
    f.transient = own->transient_peak;
    f.price = stepper.price();
  }
  return f;
}

}  // namespace

void ExpectSteps(const StepperContext& context, const Stepper& stepper) {
  context.watch->Expect(StepTracker(context.options->model.layers,
                                    stepper.layout().chunks(), stepper.costs()),
                        ExpectedOf(context, stepper).seconds());
}

void Announce(const StepperContext& context, const Stepper& stepper,
              const std::string& cut) {
  if (context.environment->rank != 0) return;
  if (const char* note = std::getenv(kPrivateNote)) {
    context.watch->console().Note(note);
  }
  BannerFacts facts = FactsOf(context, stepper);
  facts.cut = cut;
  for (const std::string& line : Banner(facts)) {
    context.watch->console().Note(line);
  }
}

}  // namespace sluice::train

#include "client/train/step/stepper.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_join.h"
#include "client/torch/run/choose_settings.h"
#include "planner/stream/schedule.h"
#include "planner/stream/stream_shape.h"
#include "planner/stream/transients.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

using Order = stream::BackwardOrder;

runtime::BaselineMethod BaselineMethodOf(Method method) {
  using runtime::BaselineMethod;
  if (method == Method::kKeepAll) return BaselineMethod::kKeepAll;
  return method == Method::kAlst ? BaselineMethod::kAlst
                                 : BaselineMethod::kRecompute;
}

// The context's weights and gradients, as a streamed run reads them.
class FlatWeights final : public runtime::WeightSource {
 public:
  explicit FlatWeights(const StepperContext& context) : context_(context) {}
  const runtime::ModelTensors& weights() override {
    return context_.weights->tensors();
  }
  runtime::ModelTensors& gradients() override {
    return context_.gradients->tensors();
  }
  void ZeroGradients() override { context_.gradients->flat().zero_(); }
  runtime::PendingWeights* pending() override { return context_.pending; }

 private:
  const StepperContext context_;
};

runtime::RunContext RunContextOf(const StepperContext& context,
                                 runtime::WeightSource* weights) {
  return {.memory = context.memory,
          .collectives = context.collectives,
          .weights = weights,
          .watch = context.watch};
}

// Returns the options that do not depend on the settings.
stream::StreamOptions StreamOptionsOf(const StepperContext& context,
                                      int64_t chunk) {
  const RunOptions& o = *context.options;
  return {.model = o.model,
          .layout = stream::ChunkLayout(o.seq_len, chunk,
                                        context.environment->world_size),
          .rank = context.environment->rank,
          .dtype = o.dtype,
          .alpha = o.alpha,
          .fractions = o.fractions,
          .round_output = context.RoundsOutput()};
}

runtime::StreamedStepper::Options StreamedOptions(
    const StepperContext& context) {
  const RunOptions& o = *context.options;
  stream::StreamOptions s = StreamOptionsOf(context, o.chunk);
  s.fractions = stream::KeepLastChunks(o.fractions, o.kept);
  if (o.rerun_chunks > 0) {
    s.fractions = stream::DropFree(o.model, std::move(s.fractions));
  }
  s.prefetch_depth = o.prefetch;
  s.order = o.order.value_or(Order::kKeysOuter);
  s.rerun_chunks = o.rerun_chunks;
  s.rerun_layers = std::max<int64_t>(o.rerun_layers, 1);
  s.probe = o.probe;
  return {.stream = std::move(s),
          .may_keep = o.keep,
          .keep_everything = o.resident,
          .record_copies = context.WantsTrace()};
}

stream::SettingsQuestion Question(const StepperContext& context) {
  const RunOptions& o = *context.options;
  stream::SettingsQuestion q{.stream = StreamOptionsOf(context, o.seq_len),
                             .seq_len = o.seq_len,
                             .order = o.order,
                             .rerun = o.rerun,
                             .may_keep = o.keep};
  if (o.chunk > 0) q.chunk = std::min(o.chunk, o.seq_len);
  if (o.prefetch > 0) q.prefetch = o.prefetch;
  if (o.rerun_layers > 0) q.rerun_layers = o.rerun_layers;
  return q;
}

}  // namespace

bool StepperContext::RoundsOutput() const {
  return options->dtype != Dtype::kFp32 &&
         (options->round_output || memory->rounds_output());
}

bool StepperContext::WantsTrace() const {
  return !options->trace.empty() && environment->rank == 0;
}

std::string StepperContext::KernelName() const {
  return memory->KernelName(runtime::TorchType(options->dtype),
                            options->model.head_dim());
}

Stepper::Stepper(const StepperContext& context)
    : context_(context),
      weights_(std::make_unique<FlatWeights>(context)),
      baseline_{.model = context.options->model,
                .seq_len = context.options->seq_len,
                .method = BaselineMethodOf(context.options->method),
                .device = context.memory->device(),
                .collectives = context.collectives,
                .allocator = &context.memory->allocator()} {}

Stepper::~Stepper() {
  inputs_.reset();
  if (copies_ != nullptr) copies_->Drain().IgnoreError();
}

absl::StatusOr<std::unique_ptr<Stepper>> Stepper::Make(
    const StepperContext& context, const runtime::SavedPlan* saved) {
  std::unique_ptr<Stepper> stepper(new Stepper(context));
  if (context.options->method == Method::kSluice) {
    SLUICE_ASSIGN_OR_RETURN(stepper->streamed_,
                            runtime::StreamedStepper::Make(
                                RunContextOf(context, stepper->weights_.get()),
                                StreamedOptions(context), saved));
  } else if (context.options->method == Method::kAlst) {
    SLUICE_RETURN_IF_ERROR(
        runtime::Agree(context.collectives, stepper->MakeInputs()));
  }
  return stepper;
}

absl::Status Stepper::MakeInputs() {
  SLUICE_ASSIGN_OR_RETURN(copies_,
                          context_.memory->StartCopies(context_.WantsTrace()));
  runtime::HostInputs::Options inputs{
      .layers = baseline_.model.layers,
      .rows = layout().total_local_rows(context_.environment->rank),
      .hidden = baseline_.model.hidden,
      .dtype = context_.weights->flat().scalar_type(),
      .device = baseline_.device,
      .copies = copies_.get()};
  inputs.host_size = runtime::HostInputs::HostBytes(inputs);
  if (inputs.host_size > Bytes(0)) {  // a rank may have no row
    SLUICE_ASSIGN_OR_RETURN(host_,
                            context_.memory->LeaseHost(inputs.host_size));
    inputs.host = host_->data();
  }
  SLUICE_ASSIGN_OR_RETURN(inputs_, runtime::HostInputs::Create(inputs));
  baseline_.inputs = inputs_.get();
  return absl::OkStatus();
}

absl::StatusOr<runtime::StepResult> Stepper::Run(const at::Tensor& tokens,
                                                 const at::Tensor& labels,
                                                 int64_t global_count) {
  if (streamed_ != nullptr) return streamed_->Run(tokens, labels, global_count);
  return runtime::BaselineStep(baseline_, context_.weights->tensors(),
                               context_.gradients->tensors(), tokens, labels,
                               global_count);
}

stream::ChunkLayout Stepper::layout() const {
  if (streamed_ != nullptr) return streamed_->layout();
  return stream::ChunkLayout(baseline_.seq_len, baseline_.seq_len,
                             context_.environment->world_size);
}

SegmentCosts Stepper::costs() const {
  if (streamed_ == nullptr) {
    // Backward costs two forwards, and a third if each layer runs again.
    const int64_t layers = baseline_.model.layers;
    const bool again = baseline_.method != runtime::BaselineMethod::kKeepAll;
    return {{"layer.forward", {1, layers}},
            {"layer.backward", {again ? 3.0 : 2.0, layers}}};
  }
  SegmentCosts costs;
  for (const plan::SegmentKind& kind : saved_plan()->profile.segments) {
    costs[kind.name] = {kind.seconds, kind.executions};
  }
  return costs;
}

Bytes Stepper::host_bytes() const {
  if (streamed_ != nullptr) return streamed_->host_bytes();
  return context_.memory->fixed_host() +
         (host_ != nullptr ? host_->size() : Bytes(0));
}

client::CopyStats Stepper::copies() const {
  if (streamed_ != nullptr) return streamed_->copies();
  return copies_ != nullptr ? copies_->stats() : client::CopyStats{};
}

std::vector<client::CopyRecord> Stepper::TakeCopies() {
  if (streamed_ != nullptr) return streamed_->TakeCopies();
  return copies_ != nullptr ? copies_->TakeTimeline()
                            : std::vector<client::CopyRecord>{};
}

stream::StepPrice Stepper::price() const {
  stream::StreamOptions runs = StreamedOptions(context_).stream;
  runs.fractions = streamed_->fractions();
  return stream::PriceOf(runs, saved_plan()->profile);
}

absl::StatusOr<stream::Settings> ChooseSettings(const StepperContext& context,
                                                std::string& why) {
  FlatWeights weights(context);
  SLUICE_ASSIGN_OR_RETURN(
      const auto chosen,
      runtime::ChooseSettings(RunContextOf(context, &weights),
                              Question(context), context.options->threads));
  if (!chosen.fits) {
    why = fmt::format("chunk {}: by the estimate nothing that was tried fits",
                      chosen.settings.chunk);
    return chosen.settings;
  }
  const std::string tried =
      absl::StrJoin(chosen.tried, "; ",
                    [](std::string* text, const runtime::RatedSettings& rated) {
                      *text += stream::ToString(rated.settings) +
                               (std::isfinite(rated.seconds)
                                    ? ": about " + Duration(rated.seconds)
                                    : ": does not fit");
                    });
  why = fmt::format("{}, the fastest of those tried ({})",
                    stream::ToString(chosen.settings), tried);
  return chosen.settings;
}

RunOptions WithSettings(RunOptions o, const stream::Settings& settings) {
  if (o.chunk == 0) o.chunk = settings.chunk;
  if (o.prefetch == 0) o.prefetch = settings.prefetch;
  if (!o.order.has_value()) o.order = settings.order;
  if (o.rerun_layers == 0) o.rerun_layers = settings.rerun_layers;
  o.rerun_chunks =
      o.rerun.has_value()
          ? stream::RerunChunks(
                *o.rerun, stream::ChunkLayout(o.seq_len, o.chunk, 1).chunks())
          : settings.rerun_chunks;
  o.resident = settings.resident;
  o.kept = settings.kept;
  return o;
}

absl::Status ChooseOrder(const StepperContext& context, RunOptions& options,
                         std::string& why) {
  if (options.chunk == 0 || options.order.has_value()) return absl::OkStatus();
  stream::StreamOptions stream = StreamOptionsOf(context, options.chunk);
  stream.rank = 0;
  stream.fractions.clear();
  stream.alpha = 1;
  const Order least = stream::OrderOfLeastBytes(stream);
  options.order = least;
  if (const absl::Status refused = Validate(options); !refused.ok()) {
    // A class of --fractions may exist only with the other order.
    options.order =
        least == Order::kKeysOuter ? Order::kQueriesOuter : Order::kKeysOuter;
    if (!Validate(options).ok()) return refused;
  }
  const auto moved = [&stream](Order order) {
    return fmt::format("{} with {} outer",
                       FormatBytes(Bytes(stream::BlockBytes(stream, order))),
                       stream::Name(order));
  };
  why = fmt::format(
      "chunk {}, prefetch {}, {} outer in backward: a layer's attention moves "
      "{}, {}",
      options.chunk, options.prefetch, stream::Name(*options.order),
      moved(Order::kKeysOuter), moved(Order::kQueriesOuter));
  return absl::OkStatus();
}

Bytes LeastStepBytes(const StepperContext& context) {
  const stream::SettingsQuestion q = Question(context);
  stream::StreamOptions least =
      StreamOptionsOf(context, stream::ChunksOf(q).first);
  least.alpha = std::max(least.alpha, 0.0);
  least.prefetch_depth = q.prefetch.value_or(1);
  least.order = q.order.value_or(Order::kKeysOuter);
  const Bytes ids(16 * least.layout.total_local_rows(least.rank));
  return stream::RingBytes(least) + stream::KeptBytes(least) +
         stream::TransientBytes(least) + ids;
}

}  // namespace sluice::train

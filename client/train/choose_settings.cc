#include "client/train/choose_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "client/torch/run/choose_settings.h"
#include "client/train/watch/words.h"
#include "planner/stream/schedule.h"
#include "planner/stream/stream_shape.h"
#include "planner/stream/transients.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

stream::SettingsQuestion Question(const StepperContext& context) {
  const RunOptions& o = *context.options;
  stream::SettingsQuestion q;
  q.stream.model = o.model;
  q.stream.layout = stream::ChunkLayout(o.seq_len, o.seq_len,
                                        context.environment->world_size);
  q.stream.rank = context.environment->rank;
  q.stream.dtype = o.dtype;
  q.stream.alpha = o.alpha;
  q.stream.fractions = o.fractions;
  q.stream.round_output = RoundsOutput(context);
  q.seq_len = o.seq_len;
  if (o.chunk > 0) q.chunk = std::min(o.chunk, o.seq_len);
  if (o.prefetch > 0) q.prefetch = o.prefetch;
  q.order = o.order;
  q.rerun = o.rerun;
  if (o.rerun_layers > 0) q.rerun_layers = o.rerun_layers;
  q.may_keep = o.keep;
  return q;
}

std::string Why(const runtime::ChosenSettings& chosen) {
  if (!chosen.fits) {
    return fmt::format("chunk {}: by the estimate nothing that was tried fits",
                       chosen.settings.chunk);
  }
  std::string text;
  for (const runtime::RatedSettings& rated : chosen.tried) {
    text += fmt::format(
        "{}{}: {}", text.empty() ? "" : "; ", stream::ToString(rated.settings),
        std::isfinite(rated.seconds) ? "about " + Duration(rated.seconds)
                                     : "does not fit");
  }
  return fmt::format("{}, the fastest of those tried ({})",
                     stream::ToString(chosen.settings), text);
}

}  // namespace

absl::StatusOr<ChosenSettings> ChooseSettings(const StepperContext& context) {
  FlatWeights weights(context);
  SLUICE_ASSIGN_OR_RETURN(
      const auto chosen,
      runtime::ChooseSettings(RunContextOf(context, &weights),
                              Question(context), context.options->threads));
  return ChosenSettings{chosen.settings, Why(chosen)};
}

absl::Status ChooseOrder(const StepperContext& context, RunOptions& options,
                         std::string& why) {
  if (options.chunk == 0 || options.order.has_value()) return absl::OkStatus();
  stream::StreamOptions stream = Question(context).stream;
  stream.rank = 0;
  stream.layout = stream::ChunkLayout(options.seq_len, options.chunk,
                                      stream.layout.ranks());
  stream.fractions.clear();
  stream.alpha = 1;
  using Order = stream::BackwardOrder;
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
  const int64_t ranks = q.stream.layout.ranks();
  stream::StreamOptions least = q.stream;
  least.layout =
      stream::ChunkLayout(q.seq_len, stream::ChunksOf(q).first, ranks);
  least.alpha = std::max(q.stream.alpha, 0.0);
  least.prefetch_depth = q.prefetch.value_or(1);
  least.order = q.order.value_or(stream::BackwardOrder::kKeysOuter);
  const Bytes ids(16 * least.layout.total_local_rows(q.stream.rank));
  return stream::RingBytes(least) + stream::KeptBytes(least) +
         stream::TransientBytes(least) + ids;
}

}  // namespace sluice::train

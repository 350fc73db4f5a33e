#include "planner/stream/options.h"

#include <fmt/format.h>

#include "proto/base/status.h"

namespace sluice::stream {

bool HasClass(BackwardOrder order, Class which) {
  switch (which) {
    case Class::kQueryGradient:
      return order == BackwardOrder::kKeysOuter;
    case Class::kKeyGradient:
    case Class::kValueGradient:
      return order == BackwardOrder::kQueriesOuter;
    default:
      return true;
  }
}

namespace {

absl::Status CheckRerun(const StreamOptions& options) {
  if (options.rerun_layers < 1 || options.rerun_layers > options.model.layers) {
    return absl::InvalidArgumentError(fmt::format(
        "{} layers run again together: of {} it must be 1 to {}",
        options.rerun_layers, options.model.layers, options.model.layers));
  }
  const int64_t chunks = options.layout.chunks();
  if (options.rerun_chunks < 0 || options.rerun_chunks > chunks) {
    return absl::InvalidArgumentError(
        fmt::format("{} chunks run again: of {} it must be 0 to {}",
                    options.rerun_chunks, chunks, chunks));
  }
  if (options.rerun_chunks == 0) return absl::OkStatus();
  for (const Class which : kFreeClasses) {
    const ClassTraits& c = Traits(which);
    const ClassFractions f = FractionsOf(options.fractions, c, options.alpha);
    if (f == ClassFractions{0, 0} || !c.of(options.model)) continue;
    return absl::InvalidArgumentError(fmt::format(
        "{}: keep {} and swap {}: where chunks run again it must be 0 and 0",
        c.name, f.keep, f.swap));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const StreamOptions& options) {
  SLUICE_RETURN_IF_ERROR(options.model.ValidateStream(options.layout.ranks()));
  if (!(options.alpha >= 0 && options.alpha <= 1)) {
    return absl::InvalidArgumentError(
        fmt::format("alpha is {}: it must lie between 0 and 1", options.alpha));
  }
  SLUICE_RETURN_IF_ERROR(CheckFractions(options.fractions, options.model));
  if (options.prefetch_depth < 1) {
    return absl::InvalidArgumentError(fmt::format(
        "prefetch depth is {}: it must be 1 or more", options.prefetch_depth));
  }
  SLUICE_RETURN_IF_ERROR(CheckRerun(options));
  if (options.rank < 0 || options.rank >= options.layout.ranks()) {
    return absl::InvalidArgumentError(
        fmt::format("rank {} of a layout for {} ranks", options.rank,
                    options.layout.ranks()));
  }
  if (options.layout.seq_len() < 1) {
    return absl::InvalidArgumentError("the sequence has no token");
  }
  const int64_t positions = options.model.max_positions;
  if (positions > 0 && options.layout.seq_len() > positions) {
    return absl::InvalidArgumentError(fmt::format(
        "a sequence of {} tokens needs as many learned positions; the model "
        "has {}",
        options.layout.seq_len(), positions));
  }
  return absl::OkStatus();
}

}  // namespace sluice::stream

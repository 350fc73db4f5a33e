#include "client/torch/stream_context.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "client/torch/exceptions.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

absl::Status Validate(const StreamContext::Options& options) {
  SLUICE_RETURN_IF_ERROR(options.model.Validate(options.layout.ranks()));
  const StreamOptions& stream = options.stream;
  if (!(stream.alpha >= 0 && stream.alpha <= 1)) {
    return absl::InvalidArgumentError(
        fmt::format("alpha is {}: it must lie between 0 and 1", stream.alpha));
  }
  if (stream.prefetch_depth < 1) {
    return absl::InvalidArgumentError(fmt::format(
        "prefetch depth is {}: it must be 1 or more", stream.prefetch_depth));
  }
  if (options.layout.seq_len() < 1) {
    return absl::InvalidArgumentError("the sequence has no token");
  }
  if (options.dtype != at::kFloat && options.dtype != at::kBFloat16) {
    return absl::InvalidArgumentError(
        "the streamed layer runs in fp32 or bf16");
  }
  const int64_t positions = options.model.max_positions;
  if (options.model.arch == Arch::kGpt &&
      options.layout.seq_len() > positions) {
    return absl::InvalidArgumentError(fmt::format(
        "a sequence of {} tokens needs as many learned positions; the model "
        "has {}",
        options.layout.seq_len(), positions));
  }
  return absl::OkStatus();
}

at::Tensor Sums(int64_t rows, int64_t heads, int64_t dim) {
  return at::empty({rows, heads, dim}, at::kFloat);
}

}  // namespace

StreamState::StreamState(const Options& o)
    : options(o),
      shape(o),
      store(shape, o.host),
      exchange(o.model.heads, o.model.kv_heads, shape.ranks, o.rank,
               o.collectives),
      staging(o.copies, shape.staging_slot(), 2),
      inputs(o.copies, shape.input_slot(), 2),
      blocks(o.copies, shape.block_slot(), o.stream.prefetch_depth),
      keys(o.copies, shape.key_value_slot(), 2) {
  const int64_t rows = shape.rows(0);
  if (o.dtype != at::kFloat) output = Sums(rows, shape.q_heads, shape.dim);
  query_gradient = Sums(rows, shape.q_heads, shape.dim);
  key_gradient = Sums(rows, shape.kv_heads, shape.dim);
  value_gradient = Sums(rows, shape.kv_heads, shape.dim);
}

absl::StatusOr<std::unique_ptr<ChunkHandle>> StreamState::NewHidden() {
  const int64_t unit = store.TakeHidden();
  if (unit < 0) {
    return absl::FailedPreconditionError(fmt::format(
        "all {} hidden states of the host arena are in use: a layer's input "
        "is given back by its backward",
        shape.layers + 1));
  }
  return std::make_unique<ChunkHandle>(&store, unit);
}

RowRuns StreamState::Dropped(int64_t m) const {
  RowRuns runs;
  int64_t at = 0;
  for (int64_t p = 0; p < shape.ranks; ++p) {
    const int64_t rows = shape.layout.local_rows(m, p) - shape.kept_of(m, p);
    runs.begin.push_back(at);
    runs.count.push_back(rows);
    at += rows;
  }
  return runs;
}

RopeTables StreamState::Rope(int64_t m, int64_t skip) const {
  const int64_t begin =
      shape.layout.begin(m) + shape.layout.local_offset(m, shape.rank) + skip;
  return MakeRopeTables(begin, shape.local(m) - skip, shape.dim,
                        options.model.rope_theta);
}

absl::StatusOr<std::unique_ptr<StreamContext>> StreamContext::Create(
    const Options& options) {
  SLUICE_RETURN_IF_ERROR(Validate(options));
  const Bytes needed = HostBytes(options);
  if (needed > options.host_size) {
    return absl::ResourceExhaustedError(fmt::format(
        "a step of {} tokens needs {} bytes of host memory for this rank, the "
        "leased region has {}",
        options.layout.seq_len(), needed.count(), options.host_size.count()));
  }
  using Result = absl::StatusOr<std::unique_ptr<StreamContext>>;
  return CatchStatus(
      "allocate the rings of the streamed layer",
      [&]() -> Result { return std::make_unique<StreamState>(options); });
}

Bytes StreamContext::HostBytes(const Options& options) {
  const StreamShape shape(options);
  return HostStore(shape, nullptr).size();
}

Bytes StreamContext::RingBytes(const Options& options) {
  const StreamShape shape(options);
  return Bytes(2 * shape.staging_slot() + 2 * shape.input_slot() +
               shape.prefetch_depth * shape.block_slot() +
               2 * shape.key_value_slot() + shape.accumulators());
}

LayerOutput::LayerOutput() = default;
LayerOutput::LayerOutput(LayerOutput&&) noexcept = default;
LayerOutput& LayerOutput::operator=(LayerOutput&&) noexcept = default;
LayerOutput::~LayerOutput() = default;

}  // namespace sluice::runtime

#include "tests/torch/bench/bench_step.h"

#include <ATen/ops/randint.h>

#include "planner/stream/stream_shape.h"
#include "proto/base/status.h"

namespace sluice::bench {

BenchStep::BenchStep(Node& node, const stream::StreamOptions& options)
    : copies_(&node.engine()),
      options_(options),
      host_(stream::HostBytes(options)) {
  auto context = runtime::StreamContext::Create({.stream = options,
                                                 .device = at::kCPU,
                                                 .copies = &copies_,
                                                 .allocator = &node.allocator(),
                                                 .host = host_.data(),
                                                 .host_size = host_.size()});
  SLUICE_CHECK_OK(context.status());
  context_ = *std::move(context);
  weights_ = runtime::InitialTensors(options_.model, at::kFloat, at::kCPU, 1);
  gradients_ = runtime::ZeroTensors(options_.model, at::kFloat, at::kCPU);
  tokens_ =
      at::randint(options_.model.vocab, {options_.layout.seq_len()}, at::kLong);
}

double BenchStep::Run() {
  return Seconds([&] {
    SLUICE_CHECK_OK(runtime::StreamedStep(*context_, weights_, gradients_,
                                          tokens_, tokens_, tokens_.size(0))
                        .status());
    SLUICE_CHECK_OK(copies_.Drain());
  });
}

}  // namespace sluice::bench

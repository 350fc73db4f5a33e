// A real streamed step of one rank on a bench's node, whose copies can be
// switched off.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "client/torch/stream/streamed_model.h"
#include "tests/torch/bench/bench_node.h"

namespace sluice::bench {

// Copies that can be switched off: rings then keep what they last held, and
// every ticket is reached.
class SwitchedEngine final : public client::CopyEngine {
 public:
  explicit SwitchedEngine(client::CopyEngine* engine) : engine_(engine) {}
  void Switch(bool on) { on_ = on; }

  client::Ticket MarkCompute() override {
    return on_ ? engine_->MarkCompute() : client::Ticket();
  }
  client::Ticket Enqueue(client::CopyRequest request) override {
    return on_ ? engine_->Enqueue(std::move(request)) : client::Ticket();
  }
  absl::Status Wait(const client::Ticket& ticket) override {
    return engine_->Wait(ticket);
  }
  absl::Status Drain() override { return engine_->Drain(); }
  client::CopyStats stats() const override { return engine_->stats(); }
  std::vector<client::CopyRecord> TakeTimeline() override {
    return engine_->TakeTimeline();
  }

 private:
  client::CopyEngine* engine_;
  bool on_ = true;
};

class BenchStep {
 public:
  BenchStep(Node& node, const stream::StreamOptions& options);

  // Seconds until the step's last copy is out as well.
  double Run();
  SwitchedEngine& copies() { return copies_; }
  const stream::StreamOptions& options() const { return options_; }

 private:
  SwitchedEngine copies_;
  const stream::StreamOptions options_;
  Memory host_;
  std::unique_ptr<runtime::StreamContext> context_;
  runtime::ModelTensors weights_, gradients_;
  at::Tensor tokens_;
};

}  // namespace sluice::bench

// A copy engine that forwards all calls to another engine. Derived engines
// override some calls.
#pragma once

#include <utility>
#include <vector>

#include "client/copy/copy_engine.h"

namespace sluice::client {

class ForwardingEngine : public CopyEngine {
 public:
  // `engine` outlives this engine.
  explicit ForwardingEngine(CopyEngine* engine) : engine_(engine) {}

  absl::Status UseStream(void* native) override {
    return engine_->UseStream(native);
  }
  void KnowSlack(std::vector<CopySlack> slack) override {
    engine_->KnowSlack(std::move(slack));
  }
  Ticket MarkCompute() override { return engine_->MarkCompute(); }
  Ticket Enqueue(CopyRequest request) override {
    return engine_->Enqueue(std::move(request));
  }
  absl::Status Wait(const Ticket& ticket) override {
    return engine_->Wait(ticket);
  }
  absl::Status Drain() override { return engine_->Drain(); }
  CopyStats stats() const override { return engine_->stats(); }
  std::vector<CopyRecord> TakeTimeline() override {
    return engine_->TakeTimeline();
  }

 private:
  CopyEngine* const engine_;
};

}  // namespace sluice::client

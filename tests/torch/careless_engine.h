// A copy engine that forwards a step's copies to the real engine, but omits
// some of the step's waits.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "client/copy/ticket_state.h"
#include "tests/torch/forwarding_engine.h"

namespace sluice::client {

class CarelessEngine final : public ForwardingEngine {
 public:
  static constexpr char kCompute[] = "compute";
  // Returns the kind of a copy: its label and direction.
  static std::string KindOf(const CopyRequest& request) {
    std::string kind = request.label;
    if (kind.ends_with(" out")) kind.resize(kind.size() - 4);
    const bool in = request.direction == device::CopyDirection::kHostToDevice;
    return kind + (in ? " in" : " out");
  }

  // `waiter` waits for `waited`. Each is compute, or copies of a kind, named by
  // their label and direction ("x in", "dX out"). `under_way` is true if the
  // awaited work has not ended yet.
  struct StepWait {
    const std::string& waiter;
    const std::string& waited;
    bool under_way;
  };
  // Returns whether `wait` is omitted.
  using LeaveOut = std::function<bool(const StepWait& wait)>;
  CarelessEngine(CopyEngine* engine, LeaveOut leave_out)
      : ForwardingEngine(engine), leave_out_(std::move(leave_out)) {}

  Ticket MarkCompute() override {
    return Known(ForwardingEngine::MarkCompute(), kCompute);
  }
  Ticket Enqueue(CopyRequest request) override {
    const std::string kind = KindOf(request);
    std::erase_if(request.after,
                  [&](const Ticket& t) { return IsLeftOut(kind, t); });
    return Known(ForwardingEngine::Enqueue(std::move(request)), kind);
  }
  absl::Status Wait(const Ticket& ticket) override {
    if (IsLeftOut(kCompute, ticket)) return absl::OkStatus();
    return ForwardingEngine::Wait(ticket);
  }

 private:
  Ticket Known(Ticket ticket, const std::string& kind) {
    kinds_[TicketAccess::StateOf(ticket)] = kind;
    return ticket;
  }
  bool IsLeftOut(const std::string& waiter, const Ticket& ticket) const {
    const auto found = kinds_.find(TicketAccess::StateOf(ticket));
    if (found == kinds_.end()) return false;  // a ticket that was never pending
    return leave_out_({waiter, found->second, !ticket.done()});
  }

  const LeaveOut leave_out_;
  // The map owns the states, so that no two tickets share an address.
  std::unordered_map<std::shared_ptr<TicketAccess::State>, std::string> kinds_;
};

}  // namespace sluice::client

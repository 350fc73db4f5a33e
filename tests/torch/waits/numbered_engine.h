// A copy engine between a step and the real engine. It numbers all waits of the
// step, records the order that they make, and omits the waits of some numbers.
//
// A step requests the same waits in the same order each time, so a number
// identifies one wait at one place in one step.
//
// Thread safety: as a CopyEngine's.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/copy/ticket_state.h"
#include "tests/torch/careless_engine.h"
#include "tests/torch/forwarding_engine.h"
#include "tests/torch/waits/wait_graph.h"

namespace sluice::client {

// The recorded waits of a step.
struct NotedWaits {
  std::vector<std::string> names;  // by number: "x in for layer out"
  // Groups of several waits for one mark of compute.
  std::vector<std::set<size_t>> of_marks;
  WaitGraph graph;
};

class NumberedEngine final : public ForwardingEngine {
 public:
  // `computed` returns the accesses of compute's operations issued since its
  // last call. `noted` must outlive the engine, and is complete once the engine
  // is destroyed.
  NumberedEngine(CopyEngine* engine, std::set<size_t> left_out,
                 std::function<WaitGraph::Accesses()> computed,
                 NotedWaits* noted)
      : ForwardingEngine(engine),
        left_out_(std::move(left_out)),
        computed_(std::move(computed)),
        noted_(noted) {
    computed_();  // what was computed before is no part of the step
  }
  ~NumberedEngine() override {
    NoteCompute();
    for (auto& [state, mark] : points_) {
      if (mark.is_mark && mark.waits.size() > 1) {
        noted_->of_marks.push_back(std::move(mark.waits));
      }
    }
  }

  Ticket MarkCompute() override {
    NoteCompute();
    return Known(ForwardingEngine::MarkCompute(),
                 {CarelessEngine::kCompute, noted_->graph.Add(kCompute),
                  /*is_mark=*/true});
  }
  Ticket Enqueue(CopyRequest request) override {
    NoteCompute();
    const std::string kind = CarelessEngine::KindOf(request);
    const size_t copy = noted_->graph.Add(
        request.direction == device::CopyDirection::kHostToDevice ? kIn : kOut,
        AccessesOf(request));
    std::erase_if(request.after, [&](const Ticket& ticket) {
      return IsLeftOut(kind, copy, ticket);
    });
    return Known(ForwardingEngine::Enqueue(std::move(request)),
                 {kind, copy, /*is_mark=*/false});
  }
  absl::Status Wait(const Ticket& ticket) override {
    NoteCompute();
    if (IsLeftOut(CarelessEngine::kCompute, noted_->graph.Add(kCompute),
                  ticket)) {
      return absl::OkStatus();
    }
    return ForwardingEngine::Wait(ticket);
  }

 private:
  enum Stream : int { kCompute, kIn, kOut };
  struct Point {
    std::string kind;
    size_t operation;
    bool is_mark;
    std::set<size_t> waits;  // for this point
  };

  static WaitGraph::Accesses AccessesOf(const CopyRequest& request) {
    WaitGraph::Accesses accesses;
    for (const CopyPiece& piece : request.pieces) {
      const auto size = static_cast<size_t>(piece.size.count());
      accesses.push_back({piece.from, size, /*writes=*/false});
      accesses.push_back({piece.to, size, /*writes=*/true});
    }
    return accesses;
  }
  // Adds the compute since the last call as one operation.
  void NoteCompute() {
    const WaitGraph::Accesses computed = computed_();
    if (!computed.empty()) noted_->graph.Add(kCompute, computed);
  }
  Ticket Known(Ticket ticket, Point point) {
    points_.insert_or_assign(TicketAccess::StateOf(ticket), std::move(point));
    return ticket;
  }
  bool IsLeftOut(const std::string& waiter, size_t operation,
                 const Ticket& ticket) {
    const auto found = points_.find(TicketAccess::StateOf(ticket));
    if (found == points_.end()) return false;  // never pending
    const size_t wait = noted_->graph.Wait(operation, found->second.operation);
    noted_->names.push_back(waiter + " for " + found->second.kind);
    found->second.waits.insert(wait);
    return left_out_.contains(wait);
  }

  const std::set<size_t> left_out_;
  const std::function<WaitGraph::Accesses()> computed_;
  NotedWaits* const noted_;
  // The map owns the states, so that no two tickets share an address.
  std::unordered_map<std::shared_ptr<TicketAccess::State>, Point> points_;
};

}  // namespace sluice::client

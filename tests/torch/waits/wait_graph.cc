#include "tests/torch/waits/wait_graph.h"

#include <utility>

namespace sluice::client {
namespace {

constexpr size_t kBits = 64;

}  // namespace

size_t WaitGraph::Add(int stream, bool uses_memory) {
  const size_t number = operations_.size();
  Operation& operation = operations_.emplace_back();
  operation.uses_memory = uses_memory;
  const auto [last, first] = last_.emplace(stream, number);
  if (!first) operation.before = std::exchange(last->second, number);
  return number;
}

size_t WaitGraph::Wait(size_t waiter, size_t waited) {
  operations_.at(waiter).waits.emplace_back(waits_, waited);
  return waits_++;
}

std::vector<WaitGraph::Bits> WaitGraph::Order(
    const std::set<size_t>& without) const {
  const size_t words = operations_.size() / kBits + 1;
  std::vector<Bits> order(operations_.size(), Bits(words, 0));
  for (size_t to = 0; to < operations_.size(); ++to) {
    const auto behind = [&](size_t from) {
      for (size_t i = 0; i < words; ++i) order[to][i] |= order[from][i];
      if (operations_[from].uses_memory) {
        order[to][from / kBits] |= uint64_t{1} << from % kBits;
      }
    };
    const Operation& operation = operations_[to];
    if (operation.before) behind(*operation.before);
    for (const auto& [wait, from] : operation.waits) {
      if (!without.contains(wait)) behind(from);
    }
  }
  return order;
}

bool WaitGraph::IsImplied(const std::set<size_t>& waits) const {
  const std::vector<Bits> whole = Order({}), left = Order(waits);
  for (size_t i = 0; i < operations_.size(); ++i) {
    if (operations_[i].uses_memory && whole[i] != left[i]) return false;
  }
  return true;
}

}  // namespace sluice::client

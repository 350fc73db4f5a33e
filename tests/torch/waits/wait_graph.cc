#include "tests/torch/waits/wait_graph.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace sluice::client {
namespace {

constexpr size_t kBits = 64;

}  // namespace

void WaitGraph::Insert(const fake_cuda::Access& access, Ranges* ranges) {
  auto begin = reinterpret_cast<uintptr_t>(access.address);
  uintptr_t end = begin + access.size;
  auto it = ranges->upper_bound(begin);
  if (it != ranges->begin() && std::prev(it)->second >= begin) --it;
  while (it != ranges->end() && it->first <= end) {
    begin = std::min(begin, it->first);
    end = std::max(end, it->second);
    it = ranges->erase(it);
  }
  ranges->emplace(begin, end);
}

bool WaitGraph::Overlap(const Ranges& some, const Ranges& others) {
  auto one = some.begin();
  auto other = others.begin();
  while (one != some.end() && other != others.end()) {
    if (one->second <= other->first) {
      ++one;
    } else if (other->second <= one->first) {
      ++other;
    } else {
      return true;
    }
  }
  return false;
}

size_t WaitGraph::Add(int stream, const Accesses& accesses) {
  const size_t number = operations_.size();
  Operation& operation = operations_.emplace_back();
  for (const fake_cuda::Access& access : accesses) {
    Insert(access, access.writes ? &operation.written : &operation.read);
  }
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
      order[to][from / kBits] |= uint64_t{1} << from % kBits;
    };
    const Operation& operation = operations_[to];
    if (operation.before) behind(*operation.before);
    for (const auto& [wait, from] : operation.waits) {
      if (!without.contains(wait)) behind(from);
    }
  }
  return order;
}

bool WaitGraph::AreNeeded(const std::set<size_t>& waits) const {
  const std::vector<Bits> whole = Order({}), left = Order(waits);
  for (size_t to = 0; to < operations_.size(); ++to) {
    for (size_t i = 0; i < whole[to].size(); ++i) {
      for (uint64_t lost = whole[to][i] & ~left[to][i]; lost != 0;
           lost &= lost - 1) {
        const size_t from = i * kBits + std::countr_zero(lost);
        if (Conflict(from, to)) return true;
      }
    }
  }
  return false;
}

bool WaitGraph::Conflict(size_t one, size_t other) const {
  const Operation &a = operations_.at(one), &b = operations_.at(other);
  return Overlap(a.written, b.written) || Overlap(a.written, b.read) ||
         Overlap(a.read, b.written);
}

}  // namespace sluice::client

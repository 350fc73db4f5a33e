// Finds, by vector clocks over streams, two accesses to the same bytes that
// nothing orders, whatever their timing was.
//
// Each stream counts its operations. A clock holds, for every stream, how many
// of that stream's operations have been seen. An operation has seen what its
// stream saw before it, what the host thread that enqueued it had waited for,
// and what the events that the stream waits for had seen when they were
// recorded. Accesses of two streams race if the later access has not seen the
// earlier one and at least one of them writes.
//
// Thread safety: none; callers hold the world's lock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace sluice::fake_cuda {

// The number of operations of each stream that were seen.
class Clock {
 public:
  uint64_t Seen(size_t stream) const {
    return stream < seen_.size() ? seen_[stream] : 0;
  }
  void Join(const Clock& other);
  uint64_t Advance(size_t stream);

 private:
  std::vector<uint64_t> seen_;
};

// By stream, the number of its latest operation on a piece of memory.
using Uses = std::map<size_t, uint64_t>;
bool AllSeen(const Uses& uses, const Clock& by);

// A stream's number in the clocks, and its own clock.
struct Timeline {
  size_t stream = 0;
  Clock clock;

  // Adds one operation, enqueued by a host thread that has seen `host`.
  void Enqueue(const Clock& host) {
    clock.Join(host);
    clock.Advance(stream);
  }
  uint64_t now() const { return clock.Seen(stream); }
};

// Bytes [begin, end) of a piece of memory, or plain addresses.
struct Extent {
  uint64_t object = 0;  // the memory's id, or 0 for plain addresses
  uint64_t begin = 0;
  uint64_t end = 0;
};

class RaceDetector {
 public:
  // Records that the latest operation of `by` accesses `extent`. Returns a
  // message about the first race, if there is one.
  std::optional<std::string> Access(const Timeline& by, Extent extent,
                                    bool writes, const std::string& what);
  // Forgets the accesses to bytes that were freed or became other memory.
  void Forget(Extent extent);

 private:
  struct Operation {
    uint64_t tick = 0;
    std::string what;
  };
  struct Cell {
    uint64_t end = 0;
    std::optional<size_t> writer;
    Operation write;
    std::map<size_t, Operation> reads;
  };
  using Cells = std::map<uint64_t, Cell>;

  static void Split(Cells& cells, uint64_t at);
  static std::optional<std::string> Check(const Cell& cell, const Timeline& by,
                                          bool writes, const std::string& what);
  static void Note(Cell& cell, const Timeline& by, bool writes,
                   const std::string& what);

  std::map<uint64_t, Cells> objects_;
};

}  // namespace sluice::fake_cuda

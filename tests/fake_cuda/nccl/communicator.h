// One rank's hold on a communicator, and the operations that it issues.
//
// An operation is judged when it is issued: by its buffers, and against what
// the others have issued (sequence.h). Then it is an operation of the fake
// stream; those of a communicator run one after the other, as NCCL's launches.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/fake_cuda/nccl/board.h"
#include "tests/fake_cuda/nccl/sequence.h"
#include "tests/fake_cuda/nccl/task.h"

namespace sluice::fake_nccl {

// Thread safety: thread-safe; the callers give operations their order.
class Communicator {
 public:
  // Waits for all ranks.
  static Result Join(int ranks, const UniqueId& id, int rank,
                     Communicator** made);
  // Whether this is one that lives.
  static bool IsLive(const Communicator* communicator);
  // Not to be used afterwards. What queued operations use lives on.
  static void Release(Communicator* communicator);

  Place place() const { return {rank_, board_->ranks()}; }
  int device() const { return device_; }

  // One operation, or a group's, which are one.
  Result Enqueue(const std::vector<Issue>& group, Stream stream);
  Result AsyncError();
  // Waits for what was issued, and leaves the others.
  Result Finalize();
  // Ends what runs: here at once, for others with an error.
  void Abort();

 private:
  struct Operations;

  // Takes `buffers` over (fake_cuda_hold).
  Communicator(std::shared_ptr<Board> board, int rank, int device,
               void* buffers);
  ~Communicator();
  Hold hold() const { return {&board_->shared(), place()}; }
  std::string Check(const std::vector<Issue>& group) const;
  // Until no rank is too far behind to compare with.
  void AwaitOthers(const std::vector<Issue>& group) const;
  std::string Publish(const std::vector<Issue>& group);
  Result Launch(const std::vector<Issue>& group, Stream stream);
  Result Failed() const;

  const std::shared_ptr<Board> board_;
  const std::shared_ptr<Operations> operations_;
  const int rank_;
  const int device_;
  void* const buffers_;  // of the GPU's memory; may be null
};

// The caller broke a rule: a finding.
Result Refuse(Result result, const std::string& why);
// Why a call of this thread failed last.
const char* LastError();

}  // namespace sluice::fake_nccl

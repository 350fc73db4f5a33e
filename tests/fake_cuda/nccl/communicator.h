// One rank's handle of a communicator, and the operations that the rank issues.
//
// When an operation is issued, its buffers are checked, and the operation is
// compared with those of the other ranks (sequence.h). Then it is enqueued on
// the fake stream. A communicator's operations run one after the other, as
// NCCL's launches do.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/fake_cuda/nccl/board.h"
#include "tests/fake_cuda/nccl/sequence.h"
#include "tests/fake_cuda/nccl/task.h"

namespace sluice::fake_nccl {

// Thread safety: thread-safe; the callers determine the order of operations.
class Communicator {
 public:
  // Waits until all ranks have joined.
  static Result Join(int ranks, const UniqueId& id, int rank,
                     Communicator** made);
  static bool IsLive(const Communicator* communicator);
  // Releases the handle, which must not be used afterwards. Queued operations
  // keep what they use alive.
  static void Release(Communicator* communicator);

  Place place() const { return {rank_, board_->ranks()}; }
  int device() const { return device_; }

  // Enqueues one operation, or a group's operations, which run as one.
  Result Enqueue(const std::vector<Issue>& group, Stream stream);
  Result AsyncError();
  // Waits for the issued operations, then leaves the communicator.
  Result Finalize();
  // Ends this rank's operations at once, and those of other ranks with an
  // error.
  void Abort();

 private:
  struct Operations;

  // Takes ownership of `buffers` (fake_cuda_hold).
  Communicator(std::shared_ptr<Board> board, int rank, int device,
               void* buffers);
  ~Communicator();
  Hold hold() const { return {&board_->shared(), place()}; }
  std::string Check(const std::vector<Issue>& group) const;
  // Waits until no rank is kLog operations behind (board.h).
  void AwaitOthers(const std::vector<Issue>& group) const;
  std::string Publish(const std::vector<Issue>& group);
  Result Launch(const std::vector<Issue>& group, Stream stream);
  Result Failed() const;

  const std::shared_ptr<Board> board_;
  const std::shared_ptr<Operations> operations_;
  const int rank_;
  const int device_;
  void* const buffers_;  // GPU memory (setting `nccl_kib`), or null
};

// Records that the caller broke a rule, as a finding. Returns `result`.
Result Refuse(Result result, const std::string& why);
// Returns why this thread's last failing call failed.
const char* LastError();

}  // namespace sluice::fake_nccl

// What a daemon knows, in memory that outlives it.
//
// A checkpoint is everything, as bytes; a record is one change since. The
// newest checkpoint and the records after it say what was known when the
// process ended, at whatever instruction that was: both count from their last
// store on, whole, or not at all. README.md draws the memory.
//
// Errors. Unimplemented: it is of a version that this build does not read.
// NotFound: its writer has voided it. FailedPrecondition: it is damaged. It is
// never read as something else. ResourceExhausted: no room, and what counted
// before counts. Thread safety: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/state/state_versions.h"
#include "proto/base/units.h"

namespace sluice::daemon {

class StateFile {
 public:
  struct Sizes {
    Bytes checkpoint = MiB(44);  // the largest one; there are two
    Bytes records = MiB(4);      // of all between two checkpoints
  };
  struct Contents {
    std::string checkpoint;
    std::vector<std::string> records;
    bool operator==(const Contents&) const = default;
  };

  // An empty state in `fd`, which is given its size and the pages of its
  // records; a checkpoint takes the pages that it needs. `fd` stays the
  // caller's and outlives this object: an open descriptor keeps the state.
  static absl::StatusOr<std::unique_ptr<StateFile>> Create(
      int fd, Sizes sizes, StateVersions versions = kStateVersions);
  // The state that is in `fd`. The next checkpoint is of this build's version.
  static absl::StatusOr<std::unique_ptr<StateFile>> Open(
      int fd, StateVersions versions = kStateVersions);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  // What was there when it was opened.
  Contents TakeContents() { return std::move(contents_); }

  // ResourceExhausted: a checkpoint is due first.
  absl::Status Append(std::string_view record);
  // Takes the place of all that was there.
  absl::Status Checkpoint(std::string_view state);
  // Voids the state until the next checkpoint. Waits for no other process.
  void Void();

 private:
  struct Layout;
  StateFile(int fd, std::byte* memory, size_t size, StateVersions versions)
      : fd_(fd), memory_(memory), size_(size), versions_(versions) {}
  absl::Status TakePages(size_t at, size_t size);
  static absl::StatusOr<std::unique_ptr<StateFile>> Map(int fd,
                                                        StateVersions versions);
  absl::Status Read();
  absl::Status ReadCheckpoint();
  absl::Status ReadRecords();
  Layout layout() const;
  void StoreWord(size_t at, uint64_t word);
  uint64_t NextEpoch() const;
  // What is there from `at` on counts from the last store on; `sum` is that of
  // its bytes.
  void Publish(size_t at, uint64_t epoch, uint64_t index, uint64_t size,
               uint32_t sum);

  const int fd_;
  std::byte* const memory_;
  const size_t size_;
  const StateVersions versions_;
  Contents contents_;
  uint64_t epoch_ = 0;  // of the checkpoint that counts, in slot epoch_ % 2
  uint64_t next_ = 0;   // record of this epoch
  size_t end_ = 0;      // of the records, from where they begin
};

}  // namespace sluice::daemon

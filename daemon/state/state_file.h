// Keeps a daemon's state in memory that outlives the daemon.
//
// A checkpoint is the whole state as bytes; a record is one change since then.
// README.md has the layout.
//
// Open returns Unimplemented if this build does not read the state's version,
// NotFound if its writer has voided it, FailedPrecondition if it is damaged.
// Writing returns ResourceExhausted if there is no room; the state stays valid.
//
// Thread safety: one owner.
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
#include "proto/base/units.h"

namespace sluice::daemon {

struct StateVersions {
  uint32_t written = 2;
  uint32_t oldest_read = 1;  // oldest version that this build reads
  // Builds that write this version or a later one can read this build's state.
  uint32_t oldest_reader = 1;
};

// Defined in a file of its own, so that a test program can define another
// version (tests/golden/next).
extern const StateVersions kStateVersions;

// Returns OK if this build (`own`) can read a state of version `written`; else
// Unimplemented, which names both versions.
absl::Status CheckStateVersion(uint32_t written, uint32_t oldest_reader,
                               const StateVersions& own = kStateVersions);

class StateFile {
 public:
  struct Sizes {
    Bytes checkpoint = MiB(44);  // the largest one; there is room for two
    Bytes records = MiB(4);      // all records between two checkpoints
  };
  struct Contents {
    std::string checkpoint;
    std::vector<std::string> records;
    bool operator==(const Contents&) const = default;
  };

  // Creates an empty state in `fd`: sets the size of the file and allocates the
  // pages of its records; the pages of a checkpoint are allocated when it is
  // written. `fd` stays the caller's and must outlive this object: an open
  // descriptor keeps the state.
  static absl::StatusOr<std::unique_ptr<StateFile>> Create(
      int fd, Sizes sizes, StateVersions versions = kStateVersions);
  // Opens the state in `fd`. From its next checkpoint on, the state has this
  // build's version.
  static absl::StatusOr<std::unique_ptr<StateFile>> Open(
      int fd, StateVersions versions = kStateVersions);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  Contents TakeContents() { return std::move(contents_); }

  // Adds a record. ResourceExhausted: no room until the next checkpoint.
  absl::Status Append(std::string_view record);
  // Writes a checkpoint, which replaces the whole state.
  absl::Status Checkpoint(std::string_view state);
  // Makes the state invalid until the next checkpoint. Does not block.
  void Void();

 private:
  struct Layout {
    size_t checkpoint = 0;  // room for one checkpoint, including its lead
    size_t records = 0;     // room for all records
    size_t slot(uint64_t epoch) const;
    size_t log() const { return slot(0) + 2 * checkpoint; }
    size_t size() const { return log() + records; }
  };
  StateFile(int fd, std::byte* memory, size_t size, StateVersions versions)
      : fd_(fd), memory_(memory), size_(size), versions_(versions) {}
  absl::Status TakePages(size_t at, size_t size);
  static absl::StatusOr<std::unique_ptr<StateFile>> Map(int fd,
                                                        StateVersions versions);
  absl::Status Read();
  absl::Status ReadCheckpoint();
  absl::Status ReadRecords();
  void StoreWord(size_t at, uint64_t word);
  uint64_t NextEpoch() const;
  // Writes `bytes` and their lead at `at`; the last store makes them valid.
  void Publish(size_t at, uint64_t epoch, uint64_t index,
               std::string_view bytes);

  const int fd_;
  std::byte* const memory_;
  const size_t size_;
  const StateVersions versions_;
  Layout layout_;
  Contents contents_;
  uint64_t epoch_ = 0;  // of the valid checkpoint, in slot epoch_ % 2
  uint64_t next_ = 0;   // number of the next record in this epoch
  size_t end_ = 0;      // end of the records, relative to their start
};

}  // namespace sluice::daemon

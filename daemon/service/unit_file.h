// The plan cache on disk: units that are planned already survive a restart.
//
// How it works. One file, replaced atomically (written beside, renamed), with
// a version and a checksum; what is read of it passed the naive check of
// plans. Saving runs on the codec thread; what is still waiting is written at
// the end. A file that cannot be read or written costs solves, never plans.
//
// Thread safety: loop's thread, but for what it runs on the codec thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/planning/unit_cache.h"
#include "daemon/service/threads/task_thread.h"

namespace sluice::daemon {

class UnitFile {
 public:
  // `codec` ends before the file does.
  UnitFile(std::string path, TaskThread* codec);
  ~UnitFile();

  // Empty when there is no file yet; InvalidArgument: it is damaged or of
  // another version, in one line.
  absl::StatusOr<std::vector<KeyedUnit>> Read() const;
  // The latest wins; earlier ones that still wait are dropped.
  void Save(UnitCache::Units units);

 private:
  struct Shared;
  static void Write(Shared& shared);

  std::shared_ptr<Shared> shared_;
  TaskThread* codec_;
};

}  // namespace sluice::daemon

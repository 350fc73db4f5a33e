// A file of one JSON object per line that tolerates a full disk for a while.
//
// Lines that a full disk refuses wait and are written before the next one, so
// no line stays cut in two, and none is lost while fewer than 1 MiB of lines
// wait. A full disk does not end a run.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/base/unique_fd.h"

namespace sluice::train {

class JsonlFile {
 public:
  // Appends to an existing file. InvalidArgument: it cannot be opened.
  static absl::StatusOr<std::unique_ptr<JsonlFile>> Open(
      const std::string& path);

  void Append(const std::string& line);  // without its newline
  // Returns a note if writing has failed, or works again, since the last call;
  // else an empty text.
  std::string TakeNote();
  int64_t waiting() const { return waiting_; }  // lines
  int64_t lost() const { return lost_; }

 private:
  JsonlFile() = default;

  std::string path_;
  UniqueFd fd_;
  std::string text_;  // waiting lines, all whole but the first
  int64_t waiting_ = 0;
  int64_t lost_ = 0;
  bool failing_ = false;
  std::string note_;
};

}  // namespace sluice::train

// A file of one JSON object per line that may be refused room for a while.
//
// A line is never left cut in two for good, and no line is lost while fewer
// than 1 MiB of them wait: what a full disk does not take now is written before
// the next one. A run does not end for its log.
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
  // Appends to what is there. InvalidArgument: it cannot be opened.
  static absl::StatusOr<std::unique_ptr<JsonlFile>> Open(
      const std::string& path);

  void Append(const std::string& line);  // without its newline
  // What there is to say since it was last asked: that writing has failed, or
  // goes on. Empty: nothing.
  std::string TakeNote();
  int64_t waiting() const { return waiting_; }  // lines
  int64_t lost() const { return lost_; }

 private:
  JsonlFile() = default;

  std::string path_;
  UniqueFd fd_;
  std::string text_;  // waiting, whole lines but for the first
  int64_t waiting_ = 0;
  int64_t lost_ = 0;
  bool failing_ = false;
  std::string note_;
};

}  // namespace sluice::train

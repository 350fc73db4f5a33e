// All results of a run, as text and as the archive that is sent back.
//
// Thread safety: one owner.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "deploy/bundle/verify/result.h"

namespace sluice::verify {

class Report {
 public:
  struct Options {
    std::string path;  // of the archive
    std::string name;  // of the folder in it
    std::string version;
    std::string work;  // where checks leave files
    // What is not to be told, and what stands there instead.
    std::vector<std::pair<std::string, std::string>> hidden;
  };
  explicit Report(Options options) : options_(std::move(options)) {}

  void Add(Result result) { results_.push_back(std::move(result)); }
  const std::vector<Result>& results() const { return results_; }

  // Replaces the archive: after each check, so that an abort leaves one.
  absl::Status Write() const;
  std::string Json() const;
  // The status of all checks that were asked for: skipped is never passed.
  Status status() const;

 private:
  std::string Hide(std::string text) const;

  const Options options_;
  std::vector<Result> results_;
};

// This machine's name, user and folders, for Options::hidden.
std::vector<std::pair<std::string, std::string>> NamesOfThisMachine();

}  // namespace sluice::verify

// Collects the results of a run and writes them as JSON and as the archive that
// the user sends back.
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
    // Names to hide, and their replacements.
    std::vector<std::pair<std::string, std::string>> hidden;
  };
  explicit Report(Options options) : options_(std::move(options)) {}

  void Add(Result result) { results_.push_back(std::move(result)); }
  const std::vector<Result>& results() const { return results_; }

  // Replaces the archive. Called after each check, so that an aborted run
  // leaves an archive too.
  absl::Status Write() const;
  std::string Json() const;
  // Returns the status of all requested checks together: failed if any failed,
  // else skipped if any (or all) were skipped.
  Status status() const;

 private:
  std::string Hide(std::string text) const;

  const Options options_;
  std::vector<Result> results_;
};

// Returns this machine's name, user and folders, with replacements, for
// Options::hidden.
std::vector<std::pair<std::string, std::string>> NamesOfThisMachine();

}  // namespace sluice::verify

// Writes the results of a run as JSON and as the archive to send back.
// Thread safety: one owner.
#pragma once

#include <signal.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "deploy/bundle/verify/check.h"

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

  // Replaces the archive; called after each check, for runs that are aborted.
  absl::Status Write() const;
  std::string Json() const;
  // All requested checks together: failed if any failed, else skipped if any
  // was.
  Status status() const;

 private:
  std::string Hide(std::string text) const;

  const Options options_;
  std::vector<Result> results_;
};

// Returns this machine's name, user and folders, for Options::hidden.
std::vector<std::pair<std::string, std::string>> NamesOfThisMachine();

// While an object lives, SIGINT, SIGTERM and SIGHUP are only recorded. The
// destructor raises the recorded signal again. One object at a time.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;

  static bool came();

 private:
  static constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_;
};

}  // namespace sluice::verify

// Child processes of tests. A Child is killed and reaped on destruction, and
// dies with the test process.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/base/unique_fd.h"

namespace sluice::testing {

struct ChildResult {
  int exit_code = -1;  // -1 if a signal ended the process
  int signal = 0;
  std::string out;  // stdout
  std::string err;  // stderr
};

class Child {
 public:
  // Runs `body` in a forked child. If its EXPECTs or ASSERTs fail, the child
  // prints their text to stdout and exits with 1. Fork before the test starts
  // threads.
  static std::unique_ptr<Child> Fork(const std::function<void()>& body);
  // Runs a program (argv[0] is its path) with stdin from /dev/null.
  // `environment` ("NAME=value", …) is added to the inherited variables.
  static std::unique_ptr<Child> Spawn(
      const std::vector<std::string>& argv,
      const std::vector<std::string>& environment = {});
  ~Child();
  Child(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void Kill(int signal);
  // Waits until stdout contains `text`. Returns false if the child ends or
  // `timeout` passes first.
  bool WaitForOutput(const std::string& text, absl::Duration timeout);
  std::string output();  // stdout so far
  // Waits for the child's end, and kills it (SIGKILL) after `timeout`.
  ChildResult Join(absl::Duration timeout = absl::Seconds(60));
  // Joins, and fails the test with the child's output unless it exited with 0.
  void ExpectSuccess(absl::Duration timeout = absl::Seconds(60));

 private:
  Child(pid_t pid, UniqueFd out, UniqueFd err);
  void Read(absl::Duration timeout);
  bool Reap(bool block);

  pid_t pid_;
  bool reaped_ = false;
  UniqueFd out_fd_, err_fd_;
  ChildResult result_;
};

// Pins this process, and its later children, to one core. Returns false if the
// kernel does not allow that core.
bool PinThisProcess(int core);

// Returns the path of a binary built with the tests ("sluiced").
std::string BinaryPath(const std::string& name);

}  // namespace sluice::testing

// Runs a daemon under a real sluiced-keeper. A test may kill either process;
// the destructor ends all of them.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace sluice::testing {

class UnderKeeper {
 public:
  // `program` serves at `socket` in the runtime directory; `more` are its
  // arguments after "--".
  struct Of {
    std::string program = "sluiced";
    std::string socket = "session.sock";
    std::vector<std::string> more = {"--driver", "sim"};
  };
  UnderKeeper() : UnderKeeper(Of()) {}
  // Returns once the daemon serves, and fails the test if it does not.
  explicit UnderKeeper(const Of& of);
  ~UnderKeeper();
  UnderKeeper(const UnderKeeper&) = delete;

  std::string File(const std::string& name) const { return folder_.File(name); }
  std::string socket() const { return File(of_.socket); }
  // Return the pid once exactly one such process runs, and its pid is not
  // `other_than`. Fail the test after 120 s.
  pid_t keeper(pid_t other_than = 0) const;
  pid_t daemon(pid_t other_than = 0) const;
  // Send SIGKILL to the process, and return its pid.
  pid_t KillKeeper() const;
  pid_t KillDaemon() const;
  // Returns the standard error of all processes.
  std::string Log() const;
  // Waits until the log contains `text` `times` times. Returns whether it does.
  bool WaitForLog(const std::string& text, int times = 1) const;
  // Ends the keeper, or a daemon without a keeper, with SIGTERM. Returns
  // whether that ended all processes.
  bool End();
  // Returns whether anything is left in the runtime directory.
  bool HoldsFiles() const;

 private:
  pid_t Wait(const std::string& program, pid_t other_than) const;

  const Of of_;
  TempDir folder_, log_;
  std::unique_ptr<Child> first_;
};

}  // namespace sluice::testing

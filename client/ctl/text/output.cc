#include "client/ctl/text/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/unique_fd.h"
#include "proto/base/whole_io.h"

namespace sluice::ctl {
namespace {

// Defers SIGINT, SIGTERM and SIGHUP while a temporary file exists.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t held;
    sigemptyset(&held);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&held, signal);
    sigprocmask(SIG_BLOCK, &held, &before_);
  }
  ~SignalsHeld() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeld(const SignalsHeld&) = delete;

 private:
  sigset_t before_;
};

// Returns InvalidArgument, because a bad path is the caller's mistake.
absl::Status CannotWrite(const std::string& path, int error) {
  return absl::InvalidArgumentError(
      fmt::format("cannot write '{}': {}; name a file in a folder you may "
                  "write to, or - for standard output",
                  path, std::strerror(error)));
}

// Returns the mode that the umask allows. mkostemp makes files with mode 0600.
mode_t PlainMode() {
  const mode_t mask = umask(0);
  umask(mask);
  return 0666 & ~mask;
}

}  // namespace

int ReportError(const absl::Status& status) {
  const std::string line =
      "error: " + Printable(std::string(status.message())) + "\n";
  std::fputs(line.c_str(), stderr);  // fmt::print throws if stderr is closed
  const bool bad_input =
      absl::IsInvalidArgument(status) || absl::IsNotFound(status);
  return bad_input ? kBadInput : 1;
}

int ExitStatus(const absl::StatusOr<int>& result) {
  return result.ok() ? *result : ReportError(result.status());
}

absl::Status CheckOutput(const std::string& path) {
  if (path == "-") return absl::OkStatus();
  struct stat info;
  if (stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return CannotWrite(path, EISDIR);
    if (!S_ISREG(info.st_mode)) return absl::OkStatus();
  }
  const std::string folder = std::filesystem::path(path).parent_path();
  const char* where = folder.empty() ? "." : folder.c_str();
  // WriteOutput makes a temporary file in the same folder.
  return access(where, W_OK | X_OK) == 0 ? absl::OkStatus()
                                         : CannotWrite(path, errno);
}

absl::Status WriteOutput(const std::string& path, std::string_view text) {
  if (path == "-") return WriteAll(STDOUT_FILENO, text, "standard output");
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    // A rename must not replace a device or a pipe (/dev/null).
    const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return fd ? WriteAll(fd.get(), text, path) : CannotWrite(path, errno);
  }
  const SignalsHeld held;
  std::string temporary = path + ".XXXXXX";
  const UniqueFd fd(mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) return CannotWrite(path, errno);
  absl::Status status = WriteAll(fd.get(), text, path);
  if (status.ok() && fchmod(fd.get(), PlainMode()) != 0) {
    status = ErrnoStatus(errno, "chmod " + temporary);
  }
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = CannotWrite(path, errno);
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace sluice::ctl

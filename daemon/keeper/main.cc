// sluiced-keeper: starts sluiced, and holds its descriptors between two
// daemons. Wiring only.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "daemon/keeper/keeper.h"
#include "daemon/runtime/process.h"
#include "daemon/store/starter.h"
#include "proto/base/status.h"
#include "proto/cli/cli.h"

namespace sluice::daemon {
namespace {

constexpr int64_t kDefaultDescriptors = 4096;

struct Arguments {
  std::string runtime_dir = "/run/sluice";
  std::string program;  // empty: the sluiced in the folder of this program
  std::optional<int64_t> max_descriptors;
  std::vector<std::string> daemon;
};

constexpr char kExamples[] = R"(Examples:
  sluiced-keeper                              /run/sluice, every default
  sluiced-keeper --runtime-dir /tmp/s -- --config sluiced.toml
  sluiced-keeper --runtime-dir /tmp/s --max-descriptors 8000 -- --driver sim

What is behind -- is sluiced's. SIGTERM and SIGINT end both; SIGHUP, SIGUSR1
and SIGUSR2 are handed on. A sluiced that dies, or that another process ends,
is started again with all it had stored. If the keeper is killed, sluiced serves
on, and its sessions end with it. Exit status: sluiced's; 2 bad input.)";

absl::StatusOr<int64_t> Capacity(std::optional<int64_t> asked) {
  Starter next;
  next.open_files = RaiseDescriptorLimit();
  const int64_t most = StoreCapacity(next, asked.value_or(kDefaultDescriptors));
  if (asked && (*asked < 1 || *asked > most)) {
    return absl::InvalidArgumentError(fmt::format(
        "--max-descriptors is {}, it must be from 1 to {} with this limit of "
        "open files ({}, ulimit -Hn)",
        *asked, StoreCapacity(next, 1 << 20), next.open_files));
  }
  return most;
}

absl::StatusOr<std::string> Program(const std::string& asked) {
  const std::string path = asked.empty() ? Sibling("sluiced") : asked;
  if (access(path.c_str(), X_OK) != 0) {
    return absl::InvalidArgumentError(
        fmt::format("cannot run {}: {} (choose another with --program)", path,
                    std::strerror(errno)));
  }
  return path;
}

absl::StatusOr<std::vector<std::string>> DaemonArguments(
    const Arguments& arguments) {
  SLUICE_ASSIGN_OR_RETURN(const std::string program,
                          Program(arguments.program));
  std::vector<std::string> argv = {program, "--runtime-dir",
                                   arguments.runtime_dir};
  argv.insert(argv.end(), arguments.daemon.begin(), arguments.daemon.end());
  return argv;
}

absl::StatusOr<int> Serve(const Arguments& arguments) {
  Keeper::Options options;
  options.runtime_dir = arguments.runtime_dir;
  SLUICE_ASSIGN_OR_RETURN(options.capacity,
                          Capacity(arguments.max_descriptors));
  SLUICE_ASSIGN_OR_RETURN(options.argv, DaemonArguments(arguments));
  SLUICE_ASSIGN_OR_RETURN(const auto keeper, Keeper::Make(std::move(options)));
  return keeper->Run();
}

int Fail(const absl::Status& status) {
  // fmt::print throws if stderr is closed, but the exit status counts.
  std::fputs(fmt::format("error: {}\n", std::string(status.message())).c_str(),
             stderr);
  return absl::IsInvalidArgument(status) || absl::IsAlreadyExists(status) ? 2
                                                                          : 1;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "sluiced-keeper: starts sluiced, holds its memory and its sockets while "
      "it is not there, and starts it again. For nodes without systemd.");
  app.add_option("--runtime-dir", arguments.runtime_dir,
                 "where the sockets are; sluiced's too")
      ->capture_default_str();
  cli::AddCount(app, "--max-descriptors", arguments.max_descriptors,
                fmt::format("how many it holds at most (default: {}, or what "
                            "the limit of open files allows)",
                            kDefaultDescriptors));
  app.add_option("--program", arguments.program,
                 "the daemon (default: sluiced, beside this program)");
  app.add_option("sluiced arguments", arguments.daemon,
                 "behind --, handed on as they are");
  app.footer(kExamples);
  app.name("sluiced-keeper");
  const auto done = cli::Parse(app, {argv + 1, argv + argc});
  if (!done.ok()) return Fail(done.status());
  if (*done) return **done;
  const auto status = Serve(arguments);
  return status.ok() ? *status : Fail(status.status());
}

}  // namespace
}  // namespace sluice::daemon

int main(int argc, char** argv) { return sluice::daemon::Main(argc, argv); }

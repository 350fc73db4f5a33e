// sluice-train: launcher and rank in one binary.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "client/torch/ranks/collectives.h"
#include "client/torch/run/rank_memory.h"
#include "client/train/launch/launcher.h"
#include "client/train/launch/options.h"
#include "client/train/launch/outcome.h"
#include "client/train/launch/private_daemon.h"
#include "client/train/launch/rank_environment.h"
#include "client/train/rank.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

absl::StatusOr<int> LaunchHere(const RunOptions& options,
                               const std::vector<std::string>& arguments) {
  HoldSignals();
  std::unique_ptr<PrivateDaemon> daemon;
  if (options.private_daemon) {
    SLUICE_ASSIGN_OR_RETURN(daemon, PrivateDaemon::Start(options));
  }
  const std::string socket =
      daemon != nullptr ? daemon->socket() : options.socket;
  const auto node = ListVisibleGpus(socket);
  if (!node.ok()) {
    const absl::Status status = AsBadInput(node.status());
    if (options.command == Command::kCheck || !absl::IsNotFound(status)) {
      return status;
    }
    return absl::NotFoundError(fmt::format(
        "{}; with --private a run has one of its own, with simulated GPUs",
        std::string(status.message())));
  }
  SLUICE_ASSIGN_OR_RETURN(
      const auto gpus,
      ChooseGpus(*node, options.gpus, options.ranks, /*spread=*/true));
  return Launch(options, BinaryFolder() + "/sluice-train", arguments, socket,
                gpus);
}

absl::StatusOr<int> Main(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments[0] == "guard") {
    RunGuard({arguments.begin() + 1, arguments.end()});
  }
  SLUICE_ASSIGN_OR_RETURN(const ParsedCommand parsed,
                          ParseCommandLine(arguments));
  if (parsed.exit >= 0) return parsed.exit;
  if (!IsRank()) return LaunchHere(parsed.options, arguments);
  SLUICE_ASSIGN_OR_RETURN(const RankEnvironment environment,
                          ReadRankEnvironment());
  const bool ours = environment.launcher_pid > 0;
  if (parsed.options.private_daemon && !ours) {
    return BadInput(
        "{} starts a daemon of its own for all its ranks, but this is one "
        "rank, started by torchrun or Slurm: name the node's daemon with "
        "--socket, or run one sluice-train with --ranks",
        parsed.options.command == Command::kCheck ? "check" : "--private");
  }
  if (ours) DieWithParent(environment.launcher_pid);
  // Gloo writes to its sockets without MSG_NOSIGNAL. A write to a dead peer
  // must return an error that names the peer, and not end this rank.
  std::signal(SIGPIPE, SIG_IGN);
  runtime::ChooseWorkspaceSize();
  runtime::DisableNcclWatchdog();
  return RunRank(parsed.options, environment);
}

}  // namespace
}  // namespace sluice::train

int main(int argc, char** argv) {
  const auto exit = sluice::train::Main({argv + 1, argv + argc});
  if (exit.ok()) return *exit;
  std::fprintf(
      stderr, "error: %s\n",
      std::string(sluice::train::WithAdvice(exit.status()).message()).c_str());
  return sluice::train::ExitCode(exit.status());
}

// main() of `sluiced`: parses flags, and returns the exit status.
#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "daemon/arguments.h"
#include "daemon/runtime/process.h"
#include "daemon/serve.h"
#include "daemon/store/starter.h"
#include "proto/cli/cli.h"

namespace sluice::daemon {
namespace {

constexpr char kExamples[] = R"(Examples:
  sluiced                                     in /run/sluice, with defaults
  sluiced --config sluiced.toml --runtime-dir /tmp/s
  sluiced --config sluiced.toml --check-config
  sluiced --config sluiced.toml --check-state
  sluiced --driver sim --runtime-dir /tmp/s   simulated GPUs

SIGTERM and SIGINT end sluiced. After SIGHUP, a new sluiced reads the file and
takes over, if systemd or sluiced-keeper started this one and the new one would
start; jobs do not notice. If a .socket unit has made session.sock, sluiced
serves there. Exit status: 0 ended by a signal; 2 bad input; 1 a fault.)";

void TuneMemory() {
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
}

int Fail(const absl::Status& status) {
  // fmt::print would throw if stderr is closed: the exit status would be lost.
  std::fputs(fmt::format("error: {}\n", std::string(status.message())).c_str(),
             stderr);
  const bool bad_input =
      absl::IsInvalidArgument(status) || absl::IsAlreadyExists(status) ||
      absl::IsUnimplemented(status) || absl::IsNotFound(status) ||
      absl::IsPermissionDenied(status);
  return bad_input ? 2 : 1;
}

int Main(int argc, char** argv) {
  TuneMemory();
  BlockSignals();
  // Numbers GPUs as nvidia-smi does.
  setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", /*overwrite=*/0);
  Arguments arguments;
  CLI::App app(
      "sluiced: the node's GPU memory service. Owns pinned host memory and "
      "GPU memory, and leases them to training ranks.");
  app.add_option("--config", arguments.config,
                 "TOML file; everything has a default");
  app.add_option("--runtime-dir", arguments.runtime_dir,
                 "where the sockets are")
      ->capture_default_str();
  app.add_option("--session-dir", arguments.session_dir,
                 "where session.sock and sim/ are, for containers to mount "
                 "without the other sockets (default: the runtime directory)");
  app.add_option("--driver", arguments.driver,
                 "auto, cuda or sim; wins over [device] driver");
  app.add_option("--end-after-idle", arguments.end_after_idle_s,
                 "end when no rank has been attached for this many seconds, "
                 "after the start at least 60")
      ->check(CLI::Range(0, 1'000'000'000));
  app.add_flag("--check-config", arguments.check,
               "say whether a start would work, and end");
  app.add_flag("--check-state", arguments.check_state,
               "say whether a start would take over what the running daemon "
               "knows, and end");
  app.footer(kExamples);
  app.name("sluiced");
  const auto done = cli::Parse(app, {argv + 1, argv + argc});
  if (!done.ok()) return Fail(done.status());
  if (*done) return **done;
  if (arguments.check || arguments.check_state) {
    const absl::Status checked = Check(arguments);
    return checked.ok() ? 0 : Fail(checked);
  }
  auto starter = TakeFromStarter();  // before threads start
  if (!starter.ok()) return Fail(starter.status());
  const absl::Status status = ServeOrSayWhy(arguments, *std::move(starter));
  return status.ok() ? 0 : Fail(status);
}

}  // namespace
}  // namespace sluice::daemon

int main(int argc, char** argv) { return sluice::daemon::Main(argc, argv); }

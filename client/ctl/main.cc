// sluicectl: asks the node's daemon, and tells people.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "client/ctl/render.h"
#include "client/query.h"
#include "client/session.h"
#include "proto/base/status.h"
#include "proto/plan/codec.h"

namespace sluice::ctl {
namespace {

constexpr const char* kExamples = R"(Examples:
  sluicectl status                        pools, ranks, plans, latest events
  sluicectl --socket /tmp/s/session.sock status --json
  sluicectl jobs                          one line a job
  sluicectl plan show 3                   what a plan keeps, swaps, recomputes

A plain user sees what is its own, the daemon's user and root everything.)";

struct Flags {
  std::string socket;
  bool json = false;
  std::string plan;
};

// 2 for what the caller got wrong, 1 for what went wrong.
int Fail(const absl::Status& status) {
  fmt::print(stderr, "error: {}\n", std::string(status.message()));
  const bool bad_input =
      absl::IsInvalidArgument(status) || absl::IsNotFound(status);
  return bad_input ? 2 : 1;
}

int Print(const absl::StatusOr<std::string>& text) {
  if (!text.ok()) return Fail(text.status());
  std::fputs(text->c_str(), stdout);
  return 0;
}

using Renderer = absl::StatusOr<std::string> (*)(const std::string&);

// The snapshot as `render` shows it, or its part `key` as JSON.
int Show(const Flags& flags, Renderer render, const std::string& key) {
  const auto status = client::QueryNode(flags.socket);
  if (!status.ok()) return Fail(status.status());
  return Print(flags.json ? JsonPart(status->json, key) : render(status->json));
}

int ShowPlan(const Flags& flags) {
  const auto status = client::QueryNode(flags.socket, flags.plan);
  if (!status.ok()) return Fail(status.status());
  if (flags.json) return Print(plan::Encode(*status->plan) + "\n");
  return Print(RenderPlan(*status->plan));
}

int Main(int argc, char** argv) {
  CLI::App app("Asks the node's Sluice daemon who holds what.", "sluicectl");
  app.footer(kExamples);
  app.require_subcommand(0, 1);  // so that a wrong word is named
  Flags flags;
  app.add_option("--socket", flags.socket,
                 "the daemon's session socket (default: $SLUICE_SOCKET, else "
                 "/run/sluice/session.sock)");
  const auto add_json = [&](CLI::App* command) {
    command->add_flag("--json", flags.json, "print JSON");
    command->fallthrough();
    return command;
  };
  int exit_code = 0;
  add_json(app.add_subcommand("status", "pools, ranks, plans, latest events"))
      ->callback([&] { exit_code = Show(flags, RenderStatus, ""); });
  add_json(app.add_subcommand("jobs", "one line a job"))->callback([&] {
    exit_code = Show(flags, RenderJobs, "jobs");
  });
  CLI::App* plan = app.add_subcommand("plan", "plans of your jobs");
  plan->require_subcommand(1)->fallthrough();
  CLI::App* show = add_json(plan->add_subcommand("show", "one plan"));
  show->add_option("ID", flags.plan, "its number in sluicectl status")
      ->required();
  show->callback([&] { exit_code = ShowPlan(flags); });
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) {
      throw CLI::ParseError("say what to show: status, jobs, plan show ID",
                            CLI::ExitCodes::RequiredError);
    }
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "error: {} (see sluicectl --help)\n", error.what());
    return 2;
  }
  return exit_code;
}

}  // namespace
}  // namespace sluice::ctl

int main(int argc, char** argv) { return sluice::ctl::Main(argc, argv); }

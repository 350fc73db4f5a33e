#include "client/ctl/bandwidth/measure_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "absl/time/clock.h"
#include "client/ctl/admin/admin.h"
#include "client/ctl/bandwidth/copy_meter.h"
#include "client/ctl/bandwidth/link_tree.h"
#include "client/ctl/text/output.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

// Reports progress on stderr. On a terminal it overwrites one line; elsewhere
// it prints a line per link.
class Progress {
 public:
  ~Progress() {
    if (terminal_) std::fputs("\r\033[K", stderr);
  }
  void Say(const std::string& what) {
    if (terminal_) {
      fmt::print(stderr, "\r\033[K{}", what);
    } else {
      fmt::print(stderr, "{}\n", what);
    }
    std::fflush(stderr);
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
};

absl::Status MayMeasure(const MeasurableNode& node, bool beside_jobs) {
  if (beside_jobs || node.jobs.empty()) return absl::OkStatus();
  constexpr size_t kShown = 3;
  const size_t shown = std::min(kShown, node.jobs.size());
  return absl::FailedPreconditionError(fmt::format(
      "{} job{} {} ranks here ({}{}): their copies and these would slow each "
      "other down; wait for {}, or give --beside-jobs",
      node.jobs.size(), node.jobs.size() == 1 ? "" : "s",
      node.jobs.size() == 1 ? "has" : "have",
      Printable(fmt::format(
          "{}",
          fmt::join(node.jobs.begin(),
                    node.jobs.begin() + static_cast<ptrdiff_t>(shown), ", "))),
      shown < node.jobs.size() ? ", ..." : "",
      node.jobs.size() == 1 ? "its end" : "their end"));
}

absl::Status MeasureLinks(const MeasureOptions& options, MeasurableNode& node) {
  Progress progress;
  SLUICE_ASSIGN_OR_RETURN(
      const auto meter,
      CopyMeter::Open({.socket = options.socket,
                       .gpu_free = node.gpu_free,
                       .window = absl::Seconds(options.seconds)}));
  const auto all =
      std::count_if(node.links.begin(), node.links.end(),
                    [](const MeasurableLink& each) { return each.measurable; });
  int done = 0;
  for (MeasurableLink& link : node.links) {
    if (!link.measurable) continue;
    progress.Say(fmt::format(
        "measuring link {} ({} of {}), {} GPU{} at once", Printable(link.name),
        ++done, all, link.gpus.size(), link.gpus.size() == 1 ? "" : "s"));
    SLUICE_ASSIGN_OR_RETURN(link.measured, meter->Measure(link.gpus));
  }
  return absl::OkStatus();
}

// Waits until the daemon has noticed that the meter's ranks disconnected.
absl::Status WaitUntilLeft(const std::string& admin_socket) {
  const MonotonicClock clock;
  const absl::Time give_up = clock.Now() + absl::Seconds(5);
  while (clock.Now() < give_up) {
    SLUICE_ASSIGN_OR_RETURN(const std::string status, ReadStatus(admin_socket));
    SLUICE_ASSIGN_OR_RETURN(const MeasurableNode node, ReadLinks(status));
    if (!node.attached.contains(CopyMeter::Job())) break;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return absl::OkStatus();
}

// Stores the measured speeds in the daemon. Returns whether the daemon uses
// them already; if not, it will once no rank is attached.
absl::StatusOr<bool> Keep(const MeasureOptions& options,
                          const MeasurableNode& node) {
  std::map<std::string, MeasuredLink> links;
  for (const auto& [name, limits] : LimitsOf(node)) {
    links[name] = {limits.h2d, limits.d2h, limits.both};
  }
  SLUICE_RETURN_IF_ERROR(WaitUntilLeft(options.admin_socket));
  return KeepLinks(options.admin_socket, links);
}

std::string WhenText(bool holds) {
  return holds ? "from now on"
               : "as soon as no rank is attached, or from its next start "
                 "(systemctl reload sluiced)";
}

std::string KeptText(bool holds, const MeasurableNode& node) {
  std::string text = fmt::format(
      "\nKept: the daemon goes by it {}, also when it is started again; "
      "sluicectl bandwidth forget undoes it\n",
      WhenText(holds));
  const auto limits = LimitsOf(node);
  for (const MeasurableLink& link : node.links) {
    if (link.set_from != "configuration" || !limits.contains(link.name)) {
      continue;
    }
    text += fmt::format("Link {} stays as the configuration says, which wins\n",
                        Printable(link.name));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> MeasureBandwidth(const MeasureOptions& options) {
  if (options.json && options.out == "-") {
    return absl::InvalidArgumentError(
        "--json and --out - both want standard output: --json has the "
        "configuration too");
  }
  if (!options.out.empty()) {
    SLUICE_RETURN_IF_ERROR(CheckOutput(options.out));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string status,
                          ReadStatus(options.admin_socket));
  SLUICE_ASSIGN_OR_RETURN(MeasurableNode node, ReadLinks(status));
  if (options.keep && !node.keeps) {
    return absl::FailedPreconditionError(
        "this sluiced does not keep what was measured: upgrade it, or give "
        "--out FILE for its configuration");
  }
  SLUICE_RETURN_IF_ERROR(MayMeasure(node, options.beside_jobs));
  SLUICE_RETURN_IF_ERROR(MeasureLinks(options, node));
  const std::string configuration = ConfigurationOf(node);
  if (!options.out.empty()) {
    SLUICE_RETURN_IF_ERROR(WriteOutput(options.out, configuration));
  }
  std::optional<bool> holds;
  if (options.keep) {
    SLUICE_ASSIGN_OR_RETURN(holds, Keep(options, node));
  }
  if (options.json) return MeasuredJson(node, options.seconds, holds);
  if (options.out == "-") return "";
  std::string text = RenderMeasured(node);
  if (holds) text += KeptText(*holds, node);
  if (!options.out.empty()) {
    text += "\nWhat the daemon's configuration should say of them is in " +
            options.out + "; it is read at its start and on SIGHUP\n";
  } else if (!holds) {
    text +=
        "\nFor the daemon's configuration, which is read at its start and on "
        "SIGHUP (or measure with --keep):\n\n" +
        configuration;
  }
  return text;
}

absl::StatusOr<std::string> ForgetMeasured(const std::string& admin_socket,
                                           bool as_json) {
  SLUICE_ASSIGN_OR_RETURN(const bool holds, ForgetLinks(admin_socket));
  if (as_json) return fmt::format("{{\"holds\": {}}}\n", holds);
  return fmt::format(
      "what was measured is forgotten: the daemon goes by its configuration "
      "alone {}\n",
      WhenText(holds));
}

}  // namespace sluice::ctl

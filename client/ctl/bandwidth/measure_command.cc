#include "client/ctl/bandwidth/measure_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "client/ctl/admin.h"
#include "client/ctl/bandwidth/copy_meter.h"
#include "client/ctl/bandwidth/link_tree.h"
#include "client/ctl/bundle/interruption.h"
#include "client/ctl/output.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

// On stderr: written over on a terminal, else a line per link.
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
                       .window = absl::Seconds(options.seconds),
                       .stop = [] { return Interruption::came(); }}));
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
  SLUICE_RETURN_IF_ERROR(MayMeasure(node, options.beside_jobs));
  {
    // What is leased goes back first; then the signal ends the process.
    const Interruption interruption;
    SLUICE_RETURN_IF_ERROR(MeasureLinks(options, node));
  }
  const std::string configuration = ConfigurationOf(node);
  if (!options.out.empty()) {
    SLUICE_RETURN_IF_ERROR(WriteOutput(options.out, configuration));
  }
  if (options.json) return MeasuredJson(node, options.seconds);
  if (options.out == "-") return "";
  std::string text = RenderMeasured(node);
  text += options.out.empty()
              ? "\nFor the daemon's configuration, which is read at its start "
                "and on SIGHUP:\n\n" +
                    configuration
              : "\nWhat the daemon's configuration should say of them is in " +
                    options.out + "; it is read at its start and on SIGHUP\n";
  return text;
}

}  // namespace sluice::ctl

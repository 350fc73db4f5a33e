#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/ctl/admin/admin.h"
#include "client/ctl/bandwidth/bandwidth.h"
#include "client/ctl/bandwidth/copy_flow.h"
#include "client/ctl/text/output.h"
#include "client/session/session.h"
#include "kernels/device/driver.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::ctl {
namespace {

using device::CopyDirection;

// Large enough to hide a copy's fixed cost, small enough for slow links.
constexpr Bytes kMostCopy = MiB(4);
constexpr Bytes kMostMemory = MiB(32);  // of each GPU; as much host memory
// A session on one GPU, with a little leased memory of the GPU and of its NUMA
// node. Its copies wait for no grants, unlike those of a training rank.
struct MeteredGpu {
  std::unique_ptr<client::Session> session;
  std::unique_ptr<client::Region> device, host;
};

std::string OwnJob() { return fmt::format("bandwidth-measure-{}", getpid()); }

absl::StatusOr<MeteredGpu> Attach(const std::string& socket,
                                  const std::vector<int64_t>& gpu_free,
                                  size_t gpu) {
  const auto ranks = static_cast<int>(gpu_free.size());
  MeteredGpu made;
  SLUICE_ASSIGN_OR_RETURN(made.session,
                          client::Session::Open({.socket = socket,
                                                 .job = OwnJob(),
                                                 .rank = Rank(gpu),
                                                 .world_size = ranks,
                                                 .local_ranks = ranks,
                                                 .gpu = DeviceIndex(gpu)}));
  const Bytes unit = made.session->limits().granularity;
  const Bytes memory =
      std::max(unit, std::min(kMostMemory, Bytes(gpu_free[gpu] / 2)));
  SLUICE_ASSIGN_OR_RETURN(made.device, made.session->LeaseGpu(memory));
  SLUICE_ASSIGN_OR_RETURN(made.host, made.session->LeaseHost(memory));
  // Makes the kernel allocate the pages now, so that no copy waits for it.
  std::memset(made.host->data(), 1, made.host->size().size());
  return made;
}

struct Rates {
  double h2d = 0, d2h = 0;
};

// Makes the GPUs with indices `which` copy at once; returns summed speeds.
absl::StatusOr<Rates> CopyAtOnce(const std::vector<MeteredGpu>& gpus,
                                 const std::vector<size_t>& which,
                                 absl::Duration window, bool h2d, bool d2h) {
  std::vector<std::unique_ptr<CopyFlow>> flows;
  for (const size_t at : which) {
    const MeteredGpu& gpu = gpus.at(at);
    // Each direction uses one half of the memory, so that neither writes what
    // the other reads.
    const Bytes half = std::min(gpu.device->size(), gpu.host->size()) / 2;
    const auto add = [&](CopyDirection direction, Bytes from) {
      flows.push_back(std::make_unique<CopyFlow>(
          gpu.session->driver(),
          CopyFlow::Range{.device = gpu.session->limits().device,
                          .direction = direction,
                          .gpu = gpu.device->data() + from.count(),
                          .host = gpu.host->data() + from.count(),
                          .size = std::min(half, kMostCopy)}));
    };
    if (h2d) add(CopyDirection::kHostToDevice, Bytes(0));
    if (d2h) add(CopyDirection::kDeviceToHost, half);
  }
  SLUICE_RETURN_IF_ERROR(MeasureAtOnce(flows, {.average_over = window}));
  Rates rates;
  for (const auto& flow : flows) {
    const bool in = flow->direction() == CopyDirection::kHostToDevice;
    (in ? rates.h2d : rates.d2h) += flow->rate();
  }
  return rates;
}

// Prints progress: on a terminal one line again and again, else one per link.
class Progress {
 public:
  ~Progress() {
    if (terminal_) std::fputs("\r\033[K", stderr);
  }
  void Say(const std::string& what) {
    std::fprintf(stderr, "%s%s%s", terminal_ ? "\r\033[K" : "", what.c_str(),
                 terminal_ ? "" : "\n");
    std::fflush(stderr);
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
};

absl::Status MayMeasure(const MeasurableNode& node, bool beside_jobs) {
  if (beside_jobs || node.jobs.empty()) return absl::OkStatus();
  const auto shown = std::min<ptrdiff_t>(3, std::ssize(node.jobs));
  const bool one = node.jobs.size() == 1;
  return absl::FailedPreconditionError(fmt::format(
      "{} job{} {} ranks here ({}{}): their copies and the measurement "
      "would slow each other down; wait for {}, or give --beside-jobs",
      node.jobs.size(), one ? "" : "s", one ? "has" : "have",
      Printable(fmt::format(
          "{}", fmt::join(node.jobs.begin(), node.jobs.begin() + shown, ", "))),
      shown < std::ssize(node.jobs) ? ", ..." : "",
      one ? "its end" : "their end"));
}

absl::Status MeasureLinks(const MeasureOptions& options, MeasurableNode& node) {
  Progress progress;
  std::vector<MeteredGpu> gpus;
  for (size_t i = 0; i < node.gpu_free.size(); ++i) {
    auto gpu = Attach(options.socket, node.gpu_free, i);
    if (!gpu.ok()) {
      return Annotate(gpu.status(), fmt::format("measure at GPU {}", i));
    }
    gpus.push_back(*std::move(gpu));
  }
  const auto all =
      std::ranges::count(node.links, true, &MeasurableLink::measurable);
  const absl::Duration window = absl::Seconds(options.seconds);
  int done = 0;
  for (MeasurableLink& link : node.links) {
    if (!link.measurable) continue;
    progress.Say(fmt::format(
        "measuring link {} ({} of {}), {} GPU{} at once", Printable(link.name),
        ++done, all, link.gpus.size(), link.gpus.size() == 1 ? "" : "s"));
    const auto copy = [&](bool h2d, bool d2h) {
      return CopyAtOnce(gpus, link.gpus, window, h2d, d2h);
    };
    SLUICE_ASSIGN_OR_RETURN(const Rates in, copy(true, false));
    SLUICE_ASSIGN_OR_RETURN(const Rates out, copy(false, true));
    SLUICE_ASSIGN_OR_RETURN(const Rates both, copy(true, true));
    link.measured = {in.h2d, out.d2h, both.h2d, both.d2h};
  }
  return absl::OkStatus();
}

// Waits at most 5 s until the daemon has closed this process's sessions.
absl::Status WaitUntilLeft(const std::string& admin_socket) {
  const MonotonicClock clock;
  const absl::Time give_up = clock.Now() + absl::Seconds(5);
  while (clock.Now() < give_up) {
    SLUICE_ASSIGN_OR_RETURN(const std::string status, ReadStatus(admin_socket));
    SLUICE_ASSIGN_OR_RETURN(const MeasurableNode node, ReadLinks(status));
    if (!node.attached.contains(OwnJob())) break;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return absl::OkStatus();
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
    SLUICE_RETURN_IF_ERROR(WaitUntilLeft(options.admin_socket));
    SLUICE_ASSIGN_OR_RETURN(holds,
                            KeepLinks(options.admin_socket, LimitsOf(node)));
  }
  if (options.json) return MeasuredJson(node, options.seconds, holds);
  if (options.out == "-") return "";
  std::string text = RenderMeasured(node);
  if (holds) text += KeptText(*holds, node);
  if (!options.out.empty()) {
    text += "\nThe links for the daemon's configuration are in " + options.out +
            "; the daemon reads its configuration at its start and on SIGHUP\n";
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

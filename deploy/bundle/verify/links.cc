// Measures how fast each GPU copies from and to host memory, alone and while
// all GPUs copy, and writes the result as a hardware file for the planner.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>

#include "client/ctl/bandwidth/link_tree.h"
#include "deploy/bundle/verify/check.h"
#include "deploy/bundle/verify/hardware_file.h"
#include "deploy/bundle/verify/link_bench.h"
#include "deploy/bundle/verify/visible.h"
#include "proto/base/file_text.h"
#include "proto/base/status.h"

namespace sluice::verify {
namespace {

using ctl::CopyFlow;
using ctl::MeasuredSpeeds;
using device::CopyDirection;
using nlohmann::json;
using Benches = std::vector<std::unique_ptr<LinkBench>>;

constexpr absl::Duration kWindow = absl::Milliseconds(200);
constexpr absl::Duration kWarmUp = absl::Milliseconds(50);

absl::StatusOr<Benches> OpenAll(device::Driver& driver,
                                const std::vector<int>& numbers) {
  SLUICE_ASSIGN_OR_RETURN(const auto gpus, driver.Devices());
  Benches benches;
  for (const device::DeviceInfo& gpu : gpus) {
    SLUICE_ASSIGN_OR_RETURN(
        benches.emplace_back(),
        LinkBench::Open(driver, gpu,
                        fmt::format("GPU {}", numbers.at(gpu.index.value()))));
  }
  return benches;
}

// Prints the check's progress, which shows where a killed check was.
void PrintBenches(std::span<const std::unique_ptr<LinkBench>> benches, bool h2d,
                  bool d2h) {
  fmt::print("{} to {}\n",
             benches.size() == 1
                 ? benches[0]->name() + " alone"
                 : fmt::format("{} GPUs together", benches.size()),
             h2d && d2h ? "both ends"
             : h2d      ? "the GPU"
                        : "the host");
  std::fflush(stdout);
}

// Bytes per second of each bench: [0] to the GPU, [1] to the host.
using Rates = std::vector<std::array<double, 2>>;
absl::StatusOr<Rates> CopyAtOnce(
    std::span<const std::unique_ptr<LinkBench>> benches, bool h2d, bool d2h) {
  PrintBenches(benches, h2d, d2h);
  std::vector<std::unique_ptr<CopyFlow>> flows;
  for (const auto& bench : benches) {
    SLUICE_RETURN_IF_ERROR(bench->Fill());
    if (h2d) flows.push_back(bench->Flow(CopyDirection::kHostToDevice));
    if (d2h) flows.push_back(bench->Flow(CopyDirection::kDeviceToHost));
  }
  SLUICE_RETURN_IF_ERROR(
      ctl::MeasureAtOnce(flows, {.warm_up = kWarmUp, .average_over = kWindow}));
  Rates rates(benches.size());
  for (size_t i = 0; i < flows.size(); ++i) {
    const bool to_host = flows[i]->direction() == CopyDirection::kDeviceToHost;
    rates[i * benches.size() / flows.size()][to_host] = flows[i]->rate();
  }
  flows.clear();  // waits for the copies
  for (const auto& bench : benches) {
    SLUICE_RETURN_IF_ERROR(bench->Compare(d2h));
  }
  return rates;
}

absl::StatusOr<std::vector<MeasuredSpeeds>> Measure(
    std::span<const std::unique_ptr<LinkBench>> benches) {
  SLUICE_ASSIGN_OR_RETURN(const Rates in, CopyAtOnce(benches, true, false));
  SLUICE_ASSIGN_OR_RETURN(const Rates out, CopyAtOnce(benches, false, true));
  SLUICE_ASSIGN_OR_RETURN(const Rates both, CopyAtOnce(benches, true, true));
  std::vector<MeasuredSpeeds> speeds;
  for (size_t i = 0; i < benches.size(); ++i) {
    speeds.push_back({in[i][0], out[i][1], both[i][0], both[i][1]});
  }
  return speeds;
}

json SpeedsJson(const MeasuredSpeeds& speeds) {
  return {{"h2d_bytes_per_second", std::round(speeds.h2d)},
          {"d2h_bytes_per_second", std::round(speeds.d2h)},
          {"both_h2d_bytes_per_second", std::round(speeds.both_h2d)},
          {"both_d2h_bytes_per_second", std::round(speeds.both_d2h)}};
}

struct Measured {
  json gpus = json::array();
  MeasuredNode node;
};

absl::StatusOr<Measured> MeasureNode(const std::vector<int>& numbers) {
  SLUICE_ASSIGN_OR_RETURN(const auto driver, device::OpenCudaDriver());
  SLUICE_ASSIGN_OR_RETURN(const Benches benches, OpenAll(*driver, numbers));
  SLUICE_ASSIGN_OR_RETURN(
      const auto host,
      driver->Usage(device::Placement::Host(benches[0]->gpu().numa)));
  Measured measured;
  for (size_t i = 0; i < benches.size(); ++i) {
    const device::DeviceInfo& gpu = benches[i]->gpu();
    SLUICE_ASSIGN_OR_RETURN(const auto alone, Measure({&benches[i], 1}));
    measured.gpus.push_back(
        {{"gpu", numbers.at(i)},
         {"numa", gpu.numa.value()},
         {"copy_bytes", benches[i]->copy_size().count()},
         {"pin_seconds_per_gib", benches[i]->pin_seconds_per_gib()},
         {"alone", SpeedsJson(alone[0])}});
  }
  SLUICE_ASSIGN_OR_RETURN(const auto together, Measure(benches));
  const auto least = std::numeric_limits<double>::max();
  measured.node = {.gpu_name = benches[0]->gpu().name,
                   .gpus = static_cast<int64_t>(benches.size()),
                   .gpu_memory_bytes = least,
                   .host_memory_bytes = static_cast<double>(host.total.count()),
                   .host_link_bytes_per_s = least};
  MeasuredNode& node = measured.node;
  for (size_t i = 0; i < benches.size(); ++i) {
    measured.gpus[i]["together"] = SpeedsJson(together[i]);
    // A step waits for its slowest GPU, and copies in both directions.
    node.host_link_bytes_per_s =
        std::min({node.host_link_bytes_per_s, std::round(together[i].h2d),
                  std::round(together[i].d2h)});
    node.gpu_memory_bytes =
        std::min(node.gpu_memory_bytes,
                 static_cast<double>(benches[i]->gpu().total_memory.count()));
  }
  return measured;
}

// Writes the file and checks that the planner's reader returns the same values
// from it.
absl::Status WriteAndReadBack(const std::string& path,
                              const HardwareFile& file) {
  std::ofstream(path) << file.text;
  SLUICE_ASSIGN_OR_RETURN(const auto read, planner::train::ReadHardware(
                                               TextOf(path), "hardware.toml"));
  if (read == file.hardware) return absl::OkStatus();
  return absl::InternalError("hardware.toml is read as another node's");
}

}  // namespace

Result RunLinks(const Surroundings& here) {
  const std::string expected =
      "copies arrive whole, and the planner reads the hardware file";
  ShowOnly(here.gpus);
  const auto measured = MeasureNode(here.gpus);
  if (!measured.ok()) {
    return Failed({}, expected, std::string(measured.status().message()));
  }
  json value = {{"window_seconds", absl::ToDoubleSeconds(kWindow)},
                {"gpus", measured->gpus}};
  const auto file = HardwareFileOf(measured->node);
  const absl::Status written =
      file.ok() ? WriteAndReadBack(here.work + "/hardware.toml", *file)
                : file.status();
  if (!written.ok()) {
    return Failed(value, expected, std::string(written.message()));
  }
  return Passed(value, expected);
}

}  // namespace sluice::verify

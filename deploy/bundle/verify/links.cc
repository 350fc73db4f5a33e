// Measures how fast each GPU copies from and to host memory, alone and while
// all GPUs copy, and writes a hardware file for the planner.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "client/ctl/bandwidth/bandwidth.h"
#include "client/ctl/bandwidth/copy_flow.h"
#include "deploy/bundle/verify/check.h"
#include "kernels/device/driver.h"
#include "planner/train/hardware.h"
#include "proto/base/clock.h"
#include "proto/base/file_text.h"
#include "proto/base/status.h"

namespace sluice::verify {
namespace {

using ctl::CopyFlow;
using ctl::MeasuredSpeeds;
using device::CopyDirection;
using device::Placement;
using nlohmann::json;
using planner::train::Hardware;

constexpr absl::Duration kWindow = absl::Milliseconds(200);
constexpr absl::Duration kWarmUp = absl::Milliseconds(50);

// The largest copy; its size hides a copy's fixed cost on any link.
constexpr Bytes kMostCopy = MiB(16);
// At most 1/8 of the GPU's free memory is used.
constexpr int64_t kLinkPartOfGpu = 8;

// Memory at both ends of one GPU's link, and copies with known bytes.
class LinkBench {
 public:
  // Allocates a small part of the GPU's memory and as much pinned memory of the
  // nearest NUMA node. `driver` outlives the bench. `name` is for messages:
  // this process may number GPUs differently.
  static absl::StatusOr<std::unique_ptr<LinkBench>> Open(
      device::Driver& driver, const device::DeviceInfo& gpu, std::string name) {
    auto bench =
        std::unique_ptr<LinkBench>(new LinkBench(driver, gpu, std::move(name)));
    const Placement here = Placement::Gpu(gpu.index);
    const Placement near = Placement::Host(gpu.numa);
    SLUICE_ASSIGN_OR_RETURN(const Bytes of_gpu, driver.Granularity(here));
    SLUICE_ASSIGN_OR_RETURN(const Bytes of_host, driver.Granularity(near));
    SLUICE_ASSIGN_OR_RETURN(const device::MemoryUse use, driver.Usage(here));
    const int64_t unit = std::lcm(of_gpu.count(), of_host.count());
    const int64_t free = use.total.count() - use.used.count();
    const int64_t wanted = std::min(kMostCopy.count(), free / kLinkPartOfGpu);
    bench->half_ = Bytes(std::max(wanted / unit * unit, unit));
    SLUICE_RETURN_IF_ERROR(bench->Make(bench->on_gpu_, here, 2 * bench->half_));
    const double begin = MonotonicSeconds();
    SLUICE_RETURN_IF_ERROR(
        bench->Make(bench->on_host_, near, 2 * bench->half_));
    bench->pin_seconds_per_gib_ =
        (MonotonicSeconds() - begin) /
        (static_cast<double>(bench->on_host_.size.count()) /
         static_cast<double>(GiB(1).count()));
    SLUICE_ASSIGN_OR_RETURN(bench->stream_, driver.CreateStream(gpu.index));
    return bench;
  }

  ~LinkBench() {
    if (stream_.value() != 0) driver_.DestroyStream(stream_).IgnoreError();
    Drop(on_gpu_);
    Drop(on_host_);
  }

  LinkBench(const LinkBench&) = delete;

  const device::DeviceInfo& gpu() const { return gpu_; }
  const std::string& name() const { return name_; }
  Bytes copy_size() const { return half_; }
  double pin_seconds_per_gib() const { return pin_seconds_per_gib_; }

  // Writes new bytes to host memory and copies them to both halves on the GPU.
  absl::Status Fill() {
    ++seed_;
    for (size_t i = 0; i < half_.size(); ++i) {
      on_host_.address[i] =
          static_cast<std::byte>((i * 2654435761u >> 13) ^ (i >> 21) ^ seed_);
    }
    std::memset(on_host_.address + half_.size(), ~seed_, half_.size());
    for (const size_t to : {size_t{0}, half_.size()}) {
      SLUICE_RETURN_IF_ERROR(CopyNow(on_gpu_.address + to, on_host_.address,
                                     CopyDirection::kHostToDevice));
    }
    return absl::OkStatus();
  }

  // Returns a flow of the first half to the GPU or of the second to the host.
  std::unique_ptr<CopyFlow> Flow(CopyDirection direction) {
    const size_t from =
        direction == CopyDirection::kHostToDevice ? 0 : half_.size();
    return std::make_unique<CopyFlow>(
        driver_, CopyFlow::Range{.device = gpu_.index,
                                 .direction = direction,
                                 .gpu = on_gpu_.address + from,
                                 .host = on_host_.address + from,
                                 .size = half_});
  }

  // Compares the bytes on the GPU (and, if `copied_to_host`, those at the host)
  // with the bytes that Fill wrote. DataLoss: a byte differs.
  absl::Status Compare(bool copied_to_host) {
    if (copied_to_host) {
      SLUICE_RETURN_IF_ERROR(CompareArrived("copies to the host"));
    }
    const device::Address back = on_host_.address + half_.size();
    for (const size_t from : {size_t{0}, half_.size()}) {
      std::memset(back, ~seed_, half_.size());
      SLUICE_RETURN_IF_ERROR(
          CopyNow(back, on_gpu_.address + from, CopyDirection::kDeviceToHost));
      SLUICE_RETURN_IF_ERROR(CompareArrived("a copy to the GPU and back"));
    }
    return absl::OkStatus();
  }

 private:
  struct Piece {
    device::Memory memory;
    device::Address address = nullptr;
    Bytes size;
  };
  LinkBench(device::Driver& driver, device::DeviceInfo gpu, std::string name)
      : driver_(driver), gpu_(std::move(gpu)), name_(std::move(name)) {}

  absl::Status Make(Piece& piece, Placement where, Bytes size) {
    piece.size = size;
    SLUICE_ASSIGN_OR_RETURN(piece.memory, driver_.Create(where, size));
    SLUICE_ASSIGN_OR_RETURN(piece.address, driver_.Reserve(size, where.kind));
    SLUICE_RETURN_IF_ERROR(driver_.Map(piece.address, size, piece.memory));
    return driver_.SetAccess(piece.address, size, gpu_.index);
  }

  // Errors are ignored, because Make may have failed before it mapped the
  // piece.
  void Drop(const Piece& piece) {
    if (piece.address != nullptr) {
      driver_.Unmap(piece.address, piece.size).IgnoreError();
      driver_.FreeReservation(piece.address, piece.size).IgnoreError();
    }
    if (piece.memory.value() != 0) driver_.Release(piece.memory).IgnoreError();
  }

  absl::Status CopyNow(device::Address to, const std::byte* from,
                       CopyDirection direction) {
    SLUICE_RETURN_IF_ERROR(
        driver_.CopyAsync(to, from, half_, direction, stream_));
    return driver_.SynchronizeStream(stream_);
  }

  absl::Status CompareArrived(const char* what) const {
    const std::byte* const sent = on_host_.address;
    const std::byte* const arrived = sent + half_.size();
    if (std::memcmp(sent, arrived, half_.size()) == 0) return absl::OkStatus();
    const auto at = std::mismatch(sent, arrived, arrived).first - sent;
    return absl::DataLossError(
        fmt::format("GPU {}: byte {} of {} differs after {}",
                    gpu_.index.value(), at, FormatBytes(half_), what));
  }

  device::Driver& driver_;
  const device::DeviceInfo gpu_;
  const std::string name_;
  device::Stream stream_;
  Bytes half_;
  Piece on_gpu_, on_host_;
  double pin_seconds_per_gib_ = 0;
  uint8_t seed_ = 0;
};

using Benches = std::vector<std::unique_ptr<LinkBench>>;
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

// Returns the bytes per second of each bench: [0] to the GPU, [1] to the host.
using Rates = std::vector<std::array<double, 2>>;
absl::StatusOr<Rates> CopyAtOnce(
    std::span<const std::unique_ptr<LinkBench>> benches, bool h2d, bool d2h) {
  PrintLine(fmt::format("{} to {}",
                        benches.size() == 1
                            ? benches[0]->name() + " alone"
                            : fmt::format("{} GPUs together", benches.size()),
                        h2d && d2h ? "both ends"
                        : h2d      ? "the GPU"
                                   : "the host"));
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

// The first entry that occurs in the GPU's name decides, so "GH200" stands
// before "H200".
constexpr std::pair<std::string_view, std::string_view> kProfiles[] = {
    {"GH200", "gh200"}, {"H200", "h200-141g"}, {"H100", "h100-80g"},
    {"B200", "b200"},   {"A800", "a800-80g"},
};
constexpr double kSmallA100 = 60e9;  // bytes: only the A100 of 40 GB has less
constexpr std::string_view kOtherwise = "h100-80g";

// Returns the shipped profile of this GPU, or "" if there is none.
std::string_view ProfileOf(const std::string& gpu_name, double memory_bytes) {
  for (const auto& [word, profile] : kProfiles) {
    if (gpu_name.find(word) != std::string::npos) return profile;
  }
  if (gpu_name.find("A100") == std::string::npos) return "";
  return memory_bytes < kSmallA100 ? "dgx-a100-40g" : "dgx-a100";
}

// Returns `name` in lower-case letters, digits and '-', as profiles are named.
std::string Plain(const std::string& name) {
  std::string plain;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!plain.empty() && plain.back() != '-') {
      plain += '-';
    }
  }
  return plain.empty() ? "gpu" : plain;
}

constexpr std::string_view kMeasured[] = {
    "gpu.memory_bytes", "node.host_memory_bytes", "links.host_bytes_per_s"};

// Returns the file's text. Each line says where its value is from.
std::string HardwareText(const Hardware& hardware, std::string_view base) {
  return fmt::format(
             "# Of ./verify. A line says whether its value was measured or is "
             "that of the\n# shipped profile {}.\n",
             base) +
         planner::train::WriteHardware(hardware, [&](std::string_view key) {
           if (key == "node.gpus") return std::string("the free ones");
           return std::ranges::find(kMeasured, key) != std::end(kMeasured)
                      ? std::string("measured")
                      : std::string(base);
         });
}

struct Measured {
  json gpus = json::array();
  // Values that were not measured are from the shipped profile `base`: the
  // GPU's, or else an H100's.
  Hardware hardware;
  std::string_view base;
};

absl::StatusOr<Measured> MeasureNode(const std::vector<int>& numbers) {
  SLUICE_ASSIGN_OR_RETURN(const auto driver, device::OpenCudaDriver());
  SLUICE_ASSIGN_OR_RETURN(const Benches benches, OpenAll(*driver, numbers));
  SLUICE_ASSIGN_OR_RETURN(
      const auto host, driver->Usage(Placement::Host(benches[0]->gpu().numa)));
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
  double gpu_memory = std::numeric_limits<double>::max();
  double link = gpu_memory;
  for (size_t i = 0; i < benches.size(); ++i) {
    measured.gpus[i]["together"] = SpeedsJson(together[i]);
    // A step waits for its slowest GPU, and copies in both directions.
    link = std::min(
        {link, std::round(together[i].h2d), std::round(together[i].d2h)});
    gpu_memory =
        std::min<double>(gpu_memory, benches[i]->gpu().total_memory.count());
  }
  const std::string& name = benches[0]->gpu().name;
  const std::string_view own = ProfileOf(name, gpu_memory);
  measured.base = own.empty() ? kOtherwise : own;
  Hardware& hardware = measured.hardware;
  SLUICE_ASSIGN_OR_RETURN(hardware,
                          planner::train::FindHardware(measured.base));
  hardware.name = "measured-" + Plain(name);
  hardware.note = fmt::format(
      "links and memory measured by ./verify; kernels, peak, links between "
      "GPUs and nodes are those of {}{}",
      measured.base, own.empty() ? ", for no profile is of this GPU" : "");
  hardware.gpus_per_node = std::ssize(benches);
  hardware.memory_bytes = gpu_memory;
  hardware.host_memory_bytes = host.total.count();
  hardware.host_link_bytes_per_s = link;
  return measured;
}

// Writes the hardware file. The planner's reader must return the same values.
absl::Status WriteAndReadBack(const std::string& path,
                              const Measured& measured) {
  std::ofstream(path) << HardwareText(measured.hardware, measured.base);
  SLUICE_ASSIGN_OR_RETURN(const auto read, planner::train::ReadHardware(
                                               TextOf(path), "hardware.toml"));
  if (read == measured.hardware) return absl::OkStatus();
  return absl::InternalError("hardware.toml is read as another node's");
}

}  // namespace

absl::StatusOr<double> PeakFlopsOf(const std::string& gpu_name,
                                   double memory_bytes) {
  const std::string_view own = ProfileOf(gpu_name, memory_bytes);
  if (own.empty()) return 0;
  SLUICE_ASSIGN_OR_RETURN(const Hardware hardware,
                          planner::train::FindHardware(own));
  return hardware.peak_flops;
}

Result RunLinks(const Surroundings& here) {
  const std::string expected =
      "copies arrive whole, and the planner reads the hardware file";
  ShowOnly(here.gpus);
  const auto measured = MeasureNode(here.gpus);
  if (!measured.ok()) return Failed({}, expected, measured.status());
  json value = {{"window_seconds", absl::ToDoubleSeconds(kWindow)},
                {"gpus", measured->gpus}};
  const absl::Status written =
      WriteAndReadBack(here.work + "/hardware.toml", *measured);
  return written.ok() ? Passed(value, expected)
                      : Failed(value, expected, written);
}

}  // namespace sluice::verify

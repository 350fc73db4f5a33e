// Runs the checks of torch in the user's Python, with the kit's package and
// daemon, on the first free GPU. Nothing is installed.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/time/clock.h"
#include "deploy/bundle/verify/check.h"
#include "deploy/bundle/verify/private_daemon.h"
#include "kernels/device/driver.h"
#include "proto/base/file_text.h"
#include "proto/base/spawn.h"
#include "proto/base/status.h"

namespace sluice::verify {
namespace {

// The lease takes 1/8 of the GPU's free memory, torch the rest.
constexpr int kTorchPartOfGpu = 8;
constexpr Bytes kTorchHost = GiB(1);

// Makes Python find the package and programs of the kit, or of a build.
absl::Status ShowPackage() {
  const auto bin = std::filesystem::path(SelfPath()).parent_path();
  const std::string package = (bin.parent_path() / "python").string();
  if (!std::filesystem::exists(package + "/sluice_verify/__main__.py")) {
    return absl::NotFoundError(
        "there is no python/sluice_verify beside bin/: unpack the kit whole");
  }
  const char* const theirs = std::getenv("PYTHONPATH");
  const std::string more = theirs != nullptr ? theirs : "";
  setenv("PYTHONPATH", (more.empty() ? package : package + ":" + more).c_str(),
         1);
  // Python must not write files into the kit.
  setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
  setenv("SLUICE_BIN_DIR", bin.c_str(), 1);
  unsetenv("SLUICE_SOCKET");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PrivateDaemon>> StartDaemon(absl::Time until) {
  SLUICE_ASSIGN_OR_RETURN(const auto driver, device::OpenCudaDriver());
  SLUICE_ASSIGN_OR_RETURN(
      const device::MemoryUse use,
      driver->Usage(device::Placement::Gpu(DeviceIndex(0))));
  SLUICE_ASSIGN_OR_RETURN(const auto devices, driver->Devices());
  SLUICE_ASSIGN_OR_RETURN(
      const double peak,
      PeakFlopsOf(devices.at(0).name, static_cast<double>(use.total.count())));
  setenv("SLUICE_VERIFY_PEAK_FLOPS", fmt::format("{}", peak).c_str(), 1);
  return PrivateDaemon::Start(
      {.gpu = (use.total - use.used) / kTorchPartOfGpu, .host = kTorchHost},
      until);
}

absl::Status AwaitNothingLeased(const PrivateDaemon& daemon, absl::Time until) {
  absl::StatusOr<Bytes> leased;
  const auto all_free = [&] {
    leased = daemon.Leased();
    return !leased.ok() || *leased == Bytes();
  };
  if (AwaitTrue(until, all_free)) return leased.status();
  return absl::InternalError(fmt::format(
      "{} of the GPU are still leased after the Python process has ended",
      FormatBytes(*leased)));
}

absl::StatusOr<Result> AskTorch(const Surroundings& here) {
  const absl::Time until = absl::Now() + here.limit * 0.9;
  ShowOnly({here.gpus.at(0)});
  SLUICE_RETURN_IF_ERROR(ShowPackage());
  SLUICE_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(until));
  const std::string path =
      std::string(std::getenv("TMPDIR")) + "/" + here.check + ".result";
  SLUICE_ASSIGN_OR_RETURN(
      const pid_t pid, Spawn({here.python, "-m", "sluice_verify", here.check,
                              "--socket", daemon->socket(), "--result", path},
                             {.name = "the Python of --python",
                              .signals = SpawnOptions::Signals::kDefault}));
  std::string bad_end = Reap(pid);
  if (!bad_end.empty()) {
    bad_end = fmt::format("the Python process {}; it said last: {}", bad_end,
                          LastLine(TextOf(here.work + ".log")));
  }
  Result result = ReadResult(path, bad_end);
  if (result.status == Status::kPassed) {
    SLUICE_RETURN_IF_ERROR(AwaitNothingLeased(*daemon, until));
    SLUICE_RETURN_IF_ERROR(daemon->End(until));
  }
  if (result.value.is_object()) result.value["on_gpu"] = here.gpus.at(0);
  return result;
}

}  // namespace

Result RunTorch(const Surroundings& here) {
  auto result = AskTorch(here);
  if (result.ok()) return *std::move(result);
  return Failed({}, "the check runs", result.status());
}

}  // namespace sluice::verify

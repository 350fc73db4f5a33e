#include "client/train/launch/private_sizes.h"

namespace sluice::train {
namespace {

constexpr Bytes kGranularity = KiB(64);

Bytes OrDefault(Bytes size, Bytes otherwise) {
  return RoundUp(size.count() > 0 ? size : otherwise, kGranularity);
}

}  // namespace

PrivateDaemon::Options PrivateSizes(const RunOptions& options) {
  const bool check = options.command == Command::kCheck;
  PrivateDaemon::Options sizes;
  sizes.gpus = options.ranks;
  sizes.gpu_memory = OrDefault(options.hbm, check ? GiB(1) : MiB(256));
  sizes.host_memory = OrDefault(options.host, check ? GiB(4) : GiB(1));
  sizes.throttled = !check;
  return sizes;
}

}  // namespace sluice::train

#include "kernels/device/sim/ledger.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>

#include "kernels/device/sim/memory_name.h"
#include "kernels/device/sim/outside.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::device {
namespace {

constexpr uint64_t kNobody = 0;  // a number that no ledger has

Bytes Total(const SimConfig& config, Placement where) {
  return where.kind == Placement::Kind::kGpu ? config.gpus[where.ordinal].memory
                                             : config.host_memory;
}

absl::Status Full(Placement where, Bytes size, Bytes used, Bytes total) {
  return ShortOf(
      where.kind == Placement::Kind::kGpu ? Shortage::kGpuMemory
                                          : Shortage::kHostMemory,
      fmt::format("{} asked on {}, {} of {} used: free some, or simulate more",
                  FormatBytes(size), PlacementName(where), FormatBytes(used),
                  FormatBytes(total)));
}

uint64_t RandomNumber() {
  uint64_t number = 0;
  SLUICE_CHECK(getrandom(&number, sizeof(number), 0) == sizeof(number));
  return std::max(number, kNobody + 1);
}

}  // namespace

Ledger::Ledger(NodeMapping* node) : node_(node), maker_(RandomNumber()) {}

Ledger::Source Ledger::SourceOf(Placement where) {
  return {where.kind, where.kind == Placement::Kind::kGpu ? where.ordinal : 0};
}

std::string Ledger::MemfdName(Placement where, Bytes size) const {
  return ToText(MemoryName{node_->name(), maker_, where, size});
}

Bytes Ledger::UsedByAll(Placement where) const {
  Bytes used;
  for (const auto& [place, size] : FindOutside(node_->name(), {})) {
    if (SourceOf(place) == SourceOf(where)) used += size;
  }
  return used;
}

std::map<Placement, Bytes> Ledger::HeldOutside() {
  std::map<Placement, Bytes> held;
  std::map<Source, Bytes> outside;
  std::set<uint64_t> adopted;
  {
    const MutexLock lock(mutex_);
    adopted = adopted_;
  }
  for (const auto& [where, size] :
       FindOutside(node_->name(), {maker_, adopted})) {
    if (!node_->Has(where)) continue;
    Bytes& sum = outside[SourceOf(where)];
    held[where] = std::min(size, Total(node_->config(), where) - sum);
    sum += held[where];
  }
  const MutexLock lock(mutex_);
  outside_ = std::move(outside);
  return held;
}

absl::Status Ledger::Add(Placement where, Bytes size) {
  const Bytes total = Total(node_->config(), where);
  if (node_->books() == Books::kShared) {
    const Bytes used = UsedByAll(where);  // includes the memory just made
    if (used <= total) return absl::OkStatus();
    return Full(where, size, used - size, total);
  }
  const MutexLock lock(mutex_);
  const Source from = SourceOf(where);
  const Bytes used = used_[from] + outside_[from];
  if (used + size > total) return Full(where, size, used, total);
  used_[from] += size;
  return absl::OkStatus();
}

absl::Status Ledger::AddAdopted(const UniqueFd& fd, Placement where,
                                Bytes size) {
  const auto name = ReadLinkedName(fmt::format("/proc/self/fd/{}", fd.get()));
  struct stat file = {};
  if (!name || name->node != node_->name() || name->where != where ||
      name->size != size || fstat(fd.get(), &file) != 0 ||
      file.st_size != size.count()) {
    return absl::InvalidArgumentError(fmt::format(
        "this descriptor is no memory of {} on {} that this node made",
        FormatBytes(size), PlacementName(where)));
  }
  const MutexLock lock(mutex_);
  if (name->maker == maker_ || !adopted_.insert(file.st_ino).second) {
    return absl::FailedPreconditionError("this memory is open here already");
  }
  used_[SourceOf(where)] += size;
  return absl::OkStatus();
}

void Ledger::Leave(const UniqueFd& fd, Placement where, Bytes size) {
  if (node_->books() == Books::kShared) return;
  struct stat file = {};
  const bool known = fstat(fd.get(), &file) == 0;
  const MutexLock lock(mutex_);
  used_[SourceOf(where)] -= size;
  if (known) adopted_.erase(file.st_ino);
}

absl::Status Ledger::CheckImport() const {
  if (node_->books() == Books::kShared) return absl::OkStatus();
  return absl::UnimplementedError(
      "the process that makes the simulated node's memory imports none");
}

absl::StatusOr<MemoryUse> Ledger::Usage(Placement where) {
  const Bytes total = Total(node_->config(), where);
  if (node_->books() == Books::kShared) {
    return MemoryUse{total, UsedByAll(where)};
  }
  const MutexLock lock(mutex_);
  const Source from = SourceOf(where);
  return MemoryUse{total, used_[from] + outside_[from]};
}

}  // namespace sluice::device

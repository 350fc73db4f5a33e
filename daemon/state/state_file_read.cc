// What an earlier daemon stored: found, and believed only whole.
#include <fmt/format.h>

#include <cstddef>
#include <string_view>

#include "daemon/state/state_file.h"
#include "daemon/state/state_layout.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

using state_layout::Damaged;
using state_layout::Header;
using state_layout::kMagic;
using state_layout::kWord;
using state_layout::Lead;
using state_layout::Load;
using state_layout::RoundUp;
using state_layout::SumOf;

// Whether what begins here fits into `room` and is as it was stored.
bool IsSound(const std::byte* here, size_t room) {
  const auto lead = Load<Lead>(here);
  return lead.size <= room - sizeof(Lead) &&
         lead.sum == SumOf(lead, SumOf(0, here + sizeof(Lead), lead.size));
}

std::string_view BytesAfter(const std::byte* lead, uint64_t size) {
  return {reinterpret_cast<const char*>(lead + sizeof(Lead)), size};
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateFile>> StateFile::Open(
    int fd, StateVersions versions) {
  SLUICE_ASSIGN_OR_RETURN(auto file, Map(fd, versions));
  SLUICE_RETURN_IF_ERROR(file->Read());
  return file;
}

absl::Status StateFile::Read() {
  const auto header = Load<Header>(memory_);
  if (header.magic != kMagic)
    return Damaged("its first word is not of this layout");
  if (header.checkpoint_bytes > size_ || header.record_bytes > size_ ||
      header.checkpoint_bytes < sizeof(Lead) || header.record_bytes < kWord ||
      header.checkpoint_bytes % kWord != 0 ||
      header.record_bytes % kWord != 0 || layout().size() != size_) {
    return Damaged("its sizes do not fit into it");
  }
  SLUICE_RETURN_IF_ERROR(ReadCheckpoint());
  return ReadRecords();
}

absl::Status StateFile::ReadCheckpoint() {
  const Layout at = layout();
  uint64_t versions = 0;
  for (const uint64_t slot : {0, 1}) {
    const std::byte* const here = memory_ + at.slot(slot);
    const auto lead = Load<Lead>(here);
    if (lead.epoch == 0) continue;  // the process ended while it wrote here
    if (lead.epoch % 2 != slot || !IsSound(here, at.checkpoint)) {
      return Damaged(fmt::format("checkpoint {}", slot));
    }
    if (lead.epoch <= epoch_) continue;
    epoch_ = lead.epoch;
    versions = lead.index;
    contents_.checkpoint = BytesAfter(here, lead.size);
  }
  // No process ends with both: it writes the one that does not count.
  if (epoch_ == 0) return absl::NotFoundError("the saved state was given up");
  return CheckStateVersion(static_cast<uint32_t>(versions),
                           static_cast<uint32_t>(versions >> 32), versions_);
}

absl::Status StateFile::ReadRecords() {
  const Layout at = layout();
  while (true) {
    const std::byte* const here = memory_ + at.log() + end_;
    const size_t room = at.records - end_;
    // Append leaves room for the word that says that there is none.
    if (room < kWord) return Damaged("its records have no end");
    if (Load<uint64_t>(here) == 0) return absl::OkStatus();  // the last one's
    if (room < sizeof(Lead) || !IsSound(here, room)) {
      return Damaged(fmt::format("record {}", next_));
    }
    const auto lead = Load<Lead>(here);
    // The first one of an older checkpoint, until this one has any.
    if (end_ == 0 && lead.epoch < epoch_) return absl::OkStatus();
    if (lead.epoch != epoch_ || lead.index != next_) {
      return Damaged(fmt::format("record {}", next_));
    }
    contents_.records.emplace_back(BytesAfter(here, lead.size));
    end_ += RoundUp(sizeof(Lead) + lead.size);
    ++next_;
  }
}

}  // namespace sluice::daemon

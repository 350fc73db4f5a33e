#include "tests/fake_cuda/range.h"

#include <algorithm>
#include <iterator>

namespace sluice::fake_cuda {
namespace {

Range ResolveMapped(World& world, DevicePointer address, size_t size,
                    const ContextState& by) {
  const auto reservation = world.ReservationAt(address);
  Range range{
      .address = address,
      .size = size,
      .kind = Range::Kind::kPinned,
      .view = reservation->second.view + (address - reservation->first)};
  DevicePointer reached = address;
  while (reached < address + size) {
    auto it = world.mappings.upper_bound(reached);
    if (it == world.mappings.begin() ||
        reached >= std::prev(it)->first + std::prev(it)->second.size ||
        !std::prev(it)->second.gpus.contains(by.device)) {
      range.broken = Rule::kCopyAccess;
      return range;
    }
    --it;
    const DevicePointer end =
        std::min(address + size, it->first + it->second.size);
    if (it->second.memory->where.type == kLocationDevice) {
      range.kind = Range::Kind::kGpu;
    }
    range.parts.push_back(
        {{it->second.memory->id, reached - it->first, end - it->first},
         &it->second.uses});
    reached = end;
  }
  return range;
}

bool LetsSeveralPass(const World& world) {
  const auto played = world.settings.answers.find(Rule::kCopyOneRegistration);
  return played != world.settings.answers.end() && played->second.code == 0;
}

}  // namespace

Range Resolve(World& world, DevicePointer address, size_t size,
              const ContextState& by) {
  if (world.ReservationAt(address) != world.reservations.end()) {
    return ResolveMapped(world, address, size, by);
  }
  Range range{.address = address,
              .size = size,
              .view = reinterpret_cast<std::byte*>(address),
              .parts = {{{0, address, address + size}, nullptr}}};
  RegistrationState* const first = world.RegistrationAt(address);
  RegistrationState* const last = world.RegistrationAt(address + size - 1);
  if (first != last && !LetsSeveralPass(world)) {
    range.broken = Rule::kCopyOneRegistration;
  } else if (first != last) {
    range.kind = Range::Kind::kPinned;  // as the emulated driver allows
  } else if (first != nullptr && (first->portable || first->by == &by)) {
    range.kind = Range::Kind::kPinned;
    range.parts.front().uses = &first->uses;
  }
  return range;
}

void NoteAccess(World& world, const Timeline& by, const Range& range,
                bool writes, const std::string& what) {
  const auto asked = world.accesses.find(by.stream);
  if (asked != world.accesses.end() && range.size > 0) {
    asked->second.push_back(
        {reinterpret_cast<const void*>(range.address), range.size, writes});
  }
  for (const Range::Part& part : range.parts) {
    if (part.uses != nullptr) (*part.uses)[by.stream] = by.now();
    const auto race = world.races.Access(by, part.extent, writes, what);
    if (race) world.Find("race: " + *race);
  }
}

}  // namespace sluice::fake_cuda

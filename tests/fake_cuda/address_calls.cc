// Calls for reservations, mappings, access and registrations.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tests/fake_cuda/call.h"
#include "tests/fake_cuda/exports.h"

namespace sluice::fake_cuda {

size_t GranularityOf(World& world, const Location& where);

namespace {

constexpr size_t kDefaultAlignment = size_t{2} << 20;  // assumed

// Maps addresses without access. Forked children do not inherit them.
std::byte* Closed(size_t size, void* at = nullptr) {
  void* const range = mmap(at, size, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE |
                               (at != nullptr ? MAP_FIXED : 0),
                           -1, 0);
  if (range == MAP_FAILED) return nullptr;
  madvise(range, size, MADV_DONTFORK);
  return static_cast<std::byte*>(range);
}

bool Open(void* at, const Allocation& memory, size_t size) {
  if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
           memory.file.get(), 0) == MAP_FAILED) {
    return false;
  }
  madvise(at, size, MADV_DONTFORK);
  return true;
}

std::byte* ReserveAligned(size_t size, size_t alignment) {
  std::byte* const raw = Closed(size + alignment);
  if (raw == nullptr) return nullptr;
  const size_t before =
      (alignment - reinterpret_cast<uintptr_t>(raw) % alignment) % alignment;
  if (before > 0) munmap(raw, before);
  munmap(raw + before + size, alignment - before);
  return raw + before;
}

template <typename Map>
bool Overlaps(const Map& map, DevicePointer address, size_t size) {
  const auto next = map.lower_bound(address);
  if (next != map.end() && next->first < address + size) return true;
  if (next == map.begin()) return false;
  const auto previous = std::prev(next);
  return previous->first + previous->second.size > address;
}

using Tiles = std::vector<std::pair<DevicePointer, MappingState*>>;

// Returns the mappings that exactly cover this range; empty if none do.
Tiles TilesOf(World& world, DevicePointer address, size_t size) {
  Tiles tiles;
  DevicePointer reached = address;
  while (reached < address + size) {
    const auto it = world.mappings.find(reached);
    if (it == world.mappings.end()) return {};
    tiles.emplace_back(it->first, &it->second);
    reached += it->second.size;
  }
  return reached == address + size ? tiles : Tiles();
}

Result Allow(Call& call, const Tiles& tiles, const AccessDescription& access) {
  const bool on = access.flags == kAccessReadWrite;
  SLUICE_FAKE_REQUIRE(call, on || access.flags == 0, kArguments);
  for (const auto& [address, mapping] : tiles) {
    const Location& where = mapping->memory->where;
    if (access.location.type == kLocationDevice) {
      if (!call.CheckDevice(access.location.id)) return call.result();
      SLUICE_FAKE_REQUIRE(
          call, where.type != kLocationDevice || where.id == access.location.id,
          kAccessOwnGpu);
      on ? (void)mapping->gpus.insert(access.location.id)
         : (void)mapping->gpus.erase(access.location.id);
      continue;
    }
    SLUICE_FAKE_REQUIRE(call,
                        access.location.type == kLocationHostNuma &&
                            where.type == kLocationHostNuma,
                        kAccessPlace);
    void* const at = reinterpret_cast<void*>(address);
    if (on ? !Open(at, *mapping->memory, mapping->size)
           : Closed(mapping->size, at) == nullptr) {
      return kOperatingSystem;
    }
  }
  return kSuccess;
}

}  // namespace
}  // namespace sluice::fake_cuda

using namespace sluice::fake_cuda;  // NOLINT: only exported functions follow

Result cuMemAddressReserve(DevicePointer* address, size_t size,
                           size_t alignment, DevicePointer hint,
                           unsigned long long flags) {
  Call call("cuMemAddressReserve", Needs::kInitialised);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, address != nullptr && flags == 0 && hint == 0,
                      kArguments);
  SLUICE_FAKE_REQUIRE(
      call, size > 0 && size % 4096 == 0 && (alignment & (alignment - 1)) == 0,
      kPageMultiple);
  std::byte* const range =
      ReserveAligned(size, std::max(alignment, kDefaultAlignment));
  std::byte* const view = Closed(size);
  if (range == nullptr || view == nullptr) return kOutOfMemory;
  *address = reinterpret_cast<DevicePointer>(range);
  TheWorld().reservations[*address] = {size, view};
  return kSuccess;
}

Result cuMemAddressFree(DevicePointer address, size_t size) {
  Call call("cuMemAddressFree", Needs::kInitialised, Call::kReleases);
  if (call.failed()) return call.result();
  World& world = TheWorld();
  const auto it = world.reservations.find(address);
  SLUICE_FAKE_REQUIRE(call,
                      it != world.reservations.end() && it->second.size == size,
                      kFreeWhole);
  SLUICE_FAKE_REQUIRE(call, !Overlaps(world.mappings, address, size),
                      kFreeUnmapped);
  munmap(reinterpret_cast<void*>(address), size);
  munmap(it->second.view, size);
  world.reservations.erase(it);
  return call.Done();
}

Result cuMemMap(DevicePointer address, size_t size, size_t offset,
                MemoryHandle handle, unsigned long long flags) {
  Call call("cuMemMap", Needs::kInitialised);
  if (call.failed()) return call.result();
  World& world = TheWorld();
  SLUICE_FAKE_REQUIRE(call, flags == 0, kArguments);
  const auto memory = world.handles.find(handle);
  SLUICE_FAKE_REQUIRE(call, memory != world.handles.end(), kLiveHandle);
  const Allocation& allocation = *memory->second;
  const size_t granularity = GranularityOf(world, allocation.where);
  SLUICE_FAKE_REQUIRE(
      call, size > 0 && size % granularity == 0 && address % granularity == 0,
      kGranularity);
  // A size above the memory's breaks no rule of this process: the process that
  // exported the memory may have told a wrong size.
  if (size > allocation.size) return kInvalidValue;
  SLUICE_FAKE_REQUIRE(call, offset == 0 && size == allocation.size,
                      kWholeMemory);
  const auto reservation = world.ReservationAt(address);
  SLUICE_FAKE_REQUIRE(
      call,
      reservation != world.reservations.end() &&
          address + size <= reservation->first + reservation->second.size,
      kInsideReservation);
  SLUICE_FAKE_REQUIRE(call, !Overlaps(world.mappings, address, size),
                      kNotMapped);
  if (!Open(reservation->second.view + (address - reservation->first),
            allocation, size)) {
    return kOperatingSystem;
  }
  world.mappings[address] = {
      .size = size, .memory = memory->second, .gpus = {}, .uses = {}};
  return kSuccess;
}

Result cuMemUnmap(DevicePointer address, size_t size) {
  AwaitWhatIsPlayed(Rule::kUnmapIdle);
  Call call("cuMemUnmap", Needs::kInitialised, Call::kReleases);
  if (call.failed()) return call.result();
  World& world = TheWorld();
  const auto it = world.mappings.find(address);
  SLUICE_FAKE_REQUIRE(
      call, it != world.mappings.end() && it->second.size == size, kUnmapWhole);
  const bool idle = AllSeen(it->second.uses, HostClock());
  const auto reservation = world.ReservationAt(address);
  Closed(size, reinterpret_cast<void*>(address));
  // The reservation is missing if the emulated driver lets callers free it
  // before its mappings.
  if (reservation != world.reservations.end()) {
    Closed(size, reservation->second.view + (address - reservation->first));
  }
  if (!idle) call.LoseLater(Rule::kUnmapIdle, it->second.gpus);
  world.mappings.erase(it);
  SLUICE_FAKE_REQUIRE(call, idle, kUnmapIdle);
  return call.Done();
}

Result cuMemSetAccess(DevicePointer address, size_t size,
                      const AccessDescription* access, size_t count) {
  Call call("cuMemSetAccess", Needs::kInitialised);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, access != nullptr && count > 0, kArguments);
  const Tiles tiles = TilesOf(TheWorld(), address, size);
  SLUICE_FAKE_REQUIRE(call, !tiles.empty(), kAccessMapped);
  for (size_t i = 0; i < count; ++i) {
    const Result result = Allow(call, tiles, access[i]);
    if (result != kSuccess) return result;
  }
  return kSuccess;
}

Result cuMemHostRegister_v2(void* start, size_t size, unsigned flags) {
  Call call("cuMemHostRegister_v2", Needs::kContext);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, start != nullptr && size > 0 && flags < 16,
                      kArguments);
  World& world = TheWorld();
  const auto address = reinterpret_cast<DevicePointer>(start);
  SLUICE_FAKE_REQUIRE(call, !Overlaps(world.registrations, address, size),
                      kRegisterOnce);
  const size_t before = address % 4096;
  const int populated = madvise(static_cast<std::byte*>(start) - before,
                                size + before, MADV_POPULATE_WRITE);
  SLUICE_FAKE_REQUIRE(call, populated == 0, kRegisterWritable);
  world.registrations[address] = {
      .size = size,
      .by = call.context(),
      .portable = (flags & kHostRegisterPortable) != 0,
      .uses = {}};
  return kSuccess;
}

Result cuMemHostUnregister(void* start) {
  AwaitWhatIsPlayed(Rule::kUnregisterIdle);
  Call call("cuMemHostUnregister", Needs::kContext, Call::kReleases);
  if (call.failed()) return call.result();
  World& world = TheWorld();
  const auto it =
      world.registrations.find(reinterpret_cast<DevicePointer>(start));
  SLUICE_FAKE_REQUIRE(call, it != world.registrations.end(), kRegistered);
  const bool idle = AllSeen(it->second.uses, HostClock());
  world.races.Forget({0, it->first, it->first + it->second.size});
  world.registrations.erase(it);
  SLUICE_FAKE_REQUIRE(call, idle, kUnregisterIdle);
  return call.Done();
}

// Libraries and kernels. There are no CPU forms of kernels yet: a library has
// one kernel, called "nothing", which does that.
#include <cstring>
#include <string_view>

#include "tests/fake_cuda/call.h"
#include "tests/fake_cuda/exports.h"

namespace sluice::fake_cuda {
namespace {

constexpr unsigned kFatbinMagic = 0xba55ed50;
constexpr Result kInvalidImage = 200;

// Of every GPU of today (CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X and the like).
bool IsLaunchable(const unsigned (&grid)[3], const unsigned (&block)[3],
                  unsigned shared) {
  const bool empty = grid[0] == 0 || grid[1] == 0 || grid[2] == 0 ||
                     block[0] == 0 || block[1] == 0 || block[2] == 0;
  return !empty && grid[0] <= 0x7fffffff && grid[1] <= 65535 &&
         grid[2] <= 65535 && block[0] <= 1024 && block[1] <= 1024 &&
         block[2] <= 64 && block[0] * block[1] * block[2] <= 1024 &&
         shared <= 48 * 1024;
}

}  // namespace
}  // namespace sluice::fake_cuda

using namespace sluice::fake_cuda;  // NOLINT: only exported functions follow

Result cuLibraryLoadData(Library* library, const void* code, int*, void**,
                         unsigned jit_options, int*, void**,
                         unsigned library_options) {
  Call call("cuLibraryLoadData", Needs::kInitialised);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call,
                      library != nullptr && code != nullptr &&
                          jit_options == 0 && library_options == 0,
                      kArguments);
  unsigned magic = 0;
  std::memcpy(&magic, code, sizeof(magic));
  if (magic != kFatbinMagic) return kInvalidImage;
  World& world = TheWorld();
  *library = world.NewHandle<Library>();
  world.libraries[*library] = world.NewHandle<Kernel>();
  return kSuccess;
}

Result cuLibraryUnload(Library library) {
  Call call("cuLibraryUnload", Needs::kInitialised, Call::kReleases);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, TheWorld().libraries.erase(library) == 1,
                      kLiveLibrary);
  return call.Done();
}

Result cuLibraryGetKernel(Kernel* kernel, Library library, const char* name) {
  Call call("cuLibraryGetKernel", Needs::kInitialised);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, kernel != nullptr && name != nullptr, kArguments);
  const auto it = TheWorld().libraries.find(library);
  SLUICE_FAKE_REQUIRE(call, it != TheWorld().libraries.end(), kLiveLibrary);
  if (std::string_view(name) != "nothing") return kNotFound;
  *kernel = it->second;
  return kSuccess;
}

Result cuLaunchKernel(Kernel kernel, unsigned grid_x, unsigned grid_y,
                      unsigned grid_z, unsigned block_x, unsigned block_y,
                      unsigned block_z, unsigned shared, StreamPointer stream,
                      void**, void** extra) {
  Call call("cuLaunchKernel", Needs::kContext);
  if (call.failed()) return call.result();
  bool live = false;
  for (const auto& [library, own] : TheWorld().libraries) live |= own == kernel;
  SLUICE_FAKE_REQUIRE(call, live, kLiveKernel);
  SLUICE_FAKE_REQUIRE(call, extra == nullptr, kArguments);
  SLUICE_FAKE_REQUIRE(call,
                      IsLaunchable({grid_x, grid_y, grid_z},
                                   {block_x, block_y, block_z}, shared),
                      kLaunchShape);
  const auto state = call.Stream(stream);
  if (state == nullptr) return call.result();
  SLUICE_FAKE_REQUIRE(call, state->context == call.context(), kStreamOfContext);
  state->timeline.Enqueue(HostClock());
  state->queue->Push([] {});
  return kSuccess;
}

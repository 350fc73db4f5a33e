// Calls for libraries and kernels. A kernel is known by its name: the fake runs
// its CPU form (kernels/), whatever the library's code is. Every library has a
// kernel called "nothing", which does nothing.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>

#include "tests/fake_cuda/exports.h"
#include "tests/fake_cuda/host_operation.h"
#include "tests/fake_cuda/kernels/kernel_form.h"

namespace sluice::fake_cuda {
namespace {

constexpr unsigned kFatbinMagic = 0xba55ed50;
constexpr Result kInvalidImage = 200;

// Returns whether a launch is within the limits that recent GPU models share
// (CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X and the like).
bool IsLaunchable(const unsigned (&grid)[3], const unsigned (&block)[3],
                  unsigned shared) {
  const bool empty = grid[0] == 0 || grid[1] == 0 || grid[2] == 0 ||
                     block[0] == 0 || block[1] == 0 || block[2] == 0;
  return !empty && grid[0] <= 0x7fffffff && grid[1] <= 65535 &&
         grid[2] <= 65535 && block[0] <= 1024 && block[1] <= 1024 &&
         block[2] <= 64 && block[0] * block[1] * block[2] <= 1024 &&
         shared <= 48 * 1024;
}

// Returns the path of the library of CPU forms that lies beside this one.
std::string DefaultForms() {
  Dl_info info = {};
  dladdr(reinterpret_cast<const void*>(&IsLaunchable), &info);
  return std::filesystem::path(info.dli_fname)
      .replace_filename("libfake_cuda_kernels.so");
}

using FindForm = const KernelForm* (*)(const char* name);

// Opens the library of forms. Ends the process if it cannot be opened, as a
// test that needs kernels would prove nothing.
FindForm OpenForms(const World& world) {
  const std::string& asked = world.settings.kernels;
  const std::string path = asked.empty() ? DefaultForms() : asked;
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const find =
      library == nullptr ? nullptr : dlsym(library, kFindKernelForm);
  if (find == nullptr) {
    std::fprintf(stderr, "fake libcuda: no CPU forms of kernels: %s\n",
                 dlerror());
    std::abort();
  }
  return reinterpret_cast<FindForm>(find);
}

// Returns the form of a kernel, or null if no kernel of ours has that name.
const KernelForm* FormOf(const World& world, std::string_view name) {
  static const KernelForm nothing = {
      {},
      [](void* const*) { return std::vector<Access>(); },
      [](const Grid&, void* const*, const Views&) {}};
  if (name == "nothing") return &nothing;
  static const FindForm find = OpenForms(world);
  return find(std::string(name).c_str());
}

// A launch's own copies of its arguments.
class Arguments {
 public:
  Arguments(const KernelForm& form, void* const* given) {
    for (size_t i = 0; i < form.argument_sizes.size(); ++i) {
      const auto* const bytes = static_cast<const std::byte*>(given[i]);
      values_.emplace_back(bytes, bytes + form.argument_sizes[i]);
      pointers_.push_back(values_.back().data());
    }
  }
  void* const* pointers() const { return pointers_.data(); }

 private:
  std::vector<std::vector<std::byte>> values_;
  std::vector<void*> pointers_;
};

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
  world.libraries[*library];
  return kSuccess;
}

Result cuLibraryUnload(Library library) {
  Call call("cuLibraryUnload", Needs::kInitialised, Call::kReleases);
  if (call.failed()) return call.result();
  World& world = TheWorld();
  const auto it = world.libraries.find(library);
  SLUICE_FAKE_REQUIRE(call, it != world.libraries.end(), kLiveLibrary);
  for (const auto& [name, kernel] : it->second) world.kernels.erase(kernel);
  world.libraries.erase(it);
  return call.Done();
}

Result cuLibraryGetKernel(Kernel* kernel, Library library, const char* name) {
  Call call("cuLibraryGetKernel", Needs::kInitialised);
  if (call.failed()) return call.result();
  SLUICE_FAKE_REQUIRE(call, kernel != nullptr && name != nullptr, kArguments);
  World& world = TheWorld();
  const auto it = world.libraries.find(library);
  SLUICE_FAKE_REQUIRE(call, it != world.libraries.end(), kLiveLibrary);
  if (FormOf(world, name) == nullptr) return kNotFound;
  auto& [own, made] = *it->second.try_emplace(name, nullptr).first;
  if (made == nullptr) made = world.NewHandle<Kernel>();
  world.kernels[made] = own;
  *kernel = made;
  return kSuccess;
}

Result cuLaunchKernel(Kernel kernel, unsigned grid_x, unsigned grid_y,
                      unsigned grid_z, unsigned block_x, unsigned block_y,
                      unsigned block_z, unsigned shared, StreamPointer stream,
                      void** arguments, void** extra) {
  Call call("cuLaunchKernel", Needs::kContext);
  if (call.failed()) return call.result();
  World& world = TheWorld();
  const auto it = world.kernels.find(kernel);
  SLUICE_FAKE_REQUIRE(call, it != world.kernels.end(), kLiveKernel);
  SLUICE_FAKE_REQUIRE(call, extra == nullptr, kArguments);
  SLUICE_FAKE_REQUIRE(call,
                      IsLaunchable({grid_x, grid_y, grid_z},
                                   {block_x, block_y, block_z}, shared),
                      kLaunchShape);
  const KernelForm& form = *FormOf(world, it->second);
  const Grid grid = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}};
  // The arguments are read before the call returns.
  const auto copied = std::make_shared<Arguments>(form, arguments);
  return EnqueueHostOperation(
      call, stream, it->second, form.accesses(copied->pointers()),
      [&form, grid, copied, name = it->second](const Views& views) {
        try {
          form.run(grid, copied->pointers(), views);
        } catch (const std::exception& error) {
          fake_cuda_find(name + ": " + error.what());
        }
      });
}

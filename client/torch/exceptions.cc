#include "client/torch/exceptions.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <new>

#include "client/torch/memory/host_scope.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::runtime {
absl::Status CurrentExceptionAsStatus(std::string_view what) {
  try {
    throw;
  } catch (const StatusException& error) {
    return Annotate(error.status(), what);
  } catch (const host_memory::OverCap& error) {
    return ShortOf(
        Shortage::kHostMemory,
        fmt::format("{}: {}", what, FirstLine(error.what_without_backtrace())));
  } catch (const c10::OutOfMemoryError& error) {
    return ShortOf(
        Shortage::kGpuMemory,
        fmt::format("{}: {}", what, FirstLine(error.what_without_backtrace())));
  } catch (const c10::Error& error) {
    return absl::InternalError(
        fmt::format("{}: {}", what, FirstLine(error.what_without_backtrace())));
  } catch (const std::bad_alloc&) {
    return ShortOf(Shortage::kHostMemory,
                   fmt::format("{}: the machine is out of memory", what));
  } catch (const std::exception& error) {
    return absl::InternalError(
        fmt::format("{}: {}", what, FirstLine(error.what())));
  }
}

}  // namespace sluice::runtime

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
  const auto line = [&](const std::string& why) {
    return fmt::format("{}: {}", what, FirstLine(why));
  };
  try {
    throw;
  } catch (const StatusException& error) {
    return Annotate(error.status(), what);
  } catch (const host_memory::OverCap& error) {
    return ShortOf(Shortage::kHostMemory, line(error.what_without_backtrace()));
  } catch (const c10::OutOfMemoryError& error) {
    return ShortOf(Shortage::kGpuMemory, line(error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    return absl::InternalError(line(error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    return ShortOf(Shortage::kHostMemory, line("the machine is out of memory"));
  } catch (const std::exception& error) {
    return absl::InternalError(line(error.what()));
  }
}

}  // namespace sluice::runtime

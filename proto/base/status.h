// Status helpers: early return, and checks of invariants.
//
// Expected outcomes (over budget, queued, infeasible) are values in the
// interfaces that have them. An absl::Status is a fault; its message states
// what failed, the value, the limit, and what to do next.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice {

// Converts errno to a Status, as in `ErrnoStatus(errno, "mmap 4 MiB")`, marked
// with the resource that ran out (shortage.h).
absl::Status ErrnoStatus(int error, std::string_view what);

// Prefixes a fault's message with `context: `; keeps code and marks.
absl::Status Annotate(const absl::Status& status, std::string_view context);

// Ends the process. Only for invariants: a CHECK that user input can make fail
// is a bug.
[[noreturn]] void CheckFailed(const char* file, int line, const char* what,
                              const std::string& detail = "");

}  // namespace sluice

#define SLUICE_CHECK(condition)                              \
  do {                                                       \
    if (!(condition)) [[unlikely]]                           \
      ::sluice::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

#define SLUICE_CHECK_OK(expression)                                           \
  do {                                                                        \
    if (const absl::Status sluice_status = (expression); !sluice_status.ok()) \
        [[unlikely]]                                                          \
      ::sluice::CheckFailed(__FILE__, __LINE__, #expression,                  \
                            sluice_status.ToString());                        \
  } while (false)

#define SLUICE_RETURN_IF_ERROR(expression)                              \
  do {                                                                  \
    if (absl::Status sluice_status = (expression); !sluice_status.ok()) \
        [[unlikely]]                                                    \
      return sluice_status;                                             \
  } while (false)

#define SLUICE_CONCAT_INNER(a, b) a##b
#define SLUICE_CONCAT(a, b) SLUICE_CONCAT_INNER(a, b)

// Usage: SLUICE_ASSIGN_OR_RETURN(auto fd, Open(path));
#define SLUICE_ASSIGN_OR_RETURN(declaration, expression)                 \
  SLUICE_ASSIGN_OR_RETURN_INNER(SLUICE_CONCAT(sluice_result_, __LINE__), \
                                declaration, expression)
#define SLUICE_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                          \
  if (!result.ok()) [[unlikely]]                                       \
    return std::move(result).status();                                 \
  declaration = *std::move(result)

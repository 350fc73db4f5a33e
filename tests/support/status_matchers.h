// Matchers for absl::Status and absl::StatusOr (Debian's Abseil has none):
//   ASSERT_THAT(Open(path), IsOk());
//   EXPECT_THAT(Lease(huge), StatusIs(absl::StatusCode::kResourceExhausted,
//                                     HasSubstr("free")));
//   SLUICE_ASSERT_OK_AND_ASSIGN(auto fd, Open(path));
#pragma once

#include <ostream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/status.h"

namespace sluice::testing {

inline const absl::Status& StatusOf(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, negation ? "is a fault" : "is OK") {
  const absl::Status status = StatusOf(arg);
  *result_listener << "status " << status.ToString();
  return status.ok();
}

MATCHER_P(StatusIs, code, "has code " + absl::StatusCodeToString(code)) {
  const absl::Status status = StatusOf(arg);
  *result_listener << "status " << status.ToString();
  return status.code() == code;
}

MATCHER_P2(StatusIs, code, message, "has the code and the message") {
  const absl::Status status = StatusOf(arg);
  *result_listener << "status " << status.ToString();
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(status.message()),
                                       result_listener);
}

}  // namespace sluice::testing

#define SLUICE_ASSERT_OK_AND_ASSIGN(declaration, expression) \
  SLUICE_ASSERT_OK_AND_ASSIGN_INNER(                         \
      SLUICE_CONCAT(sluice_test_result_, __LINE__), declaration, expression)
#define SLUICE_ASSERT_OK_AND_ASSIGN_INNER(result, declaration, expression) \
  auto result = (expression);                                              \
  ASSERT_TRUE(result.ok()) << result.status();                             \
  declaration = *std::move(result)

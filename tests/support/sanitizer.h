// Which sanitizer a test was built with.
#pragma once

namespace sluice::testing {

// Some ten times slower, and with a thread of its own.
#ifdef __has_feature
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
inline constexpr bool kThreadSanitizer = false;
#endif

}  // namespace sluice::testing

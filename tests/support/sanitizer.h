// Which sanitizers a test was built with.
#pragma once

namespace sluice::testing {

// True with any sanitizer, which is slow. Long tests then compute less.
#ifdef SLUICE_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// True with TSan, some ten times slower and with a thread of its own.
#ifdef __has_feature
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
inline constexpr bool kThreadSanitizer = false;
#endif

}  // namespace sluice::testing

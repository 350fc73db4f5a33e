// Which sanitizers a test was built with.
#pragma once

namespace sluice::testing {

// True with any sanitizer. Sanitizers are slow, so long tests compute less.
#ifdef SLUICE_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// True with TSan, which runs some ten times slower and adds its own thread.
#ifdef __has_feature
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
inline constexpr bool kThreadSanitizer = false;
#endif

}  // namespace sluice::testing

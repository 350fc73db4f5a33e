// The sanitizer that a test was built with.
#pragma once

namespace sluice::testing {

// Slower: tests that compute much do less with a sanitizer, and all of it in
// the release build.
#ifdef SLUICE_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Some ten times slower, and with a thread of its own.
#ifdef __has_feature
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
inline constexpr bool kThreadSanitizer = false;
#endif

}  // namespace sluice::testing

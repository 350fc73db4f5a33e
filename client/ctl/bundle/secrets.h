// Takes secrets out of text that is sent to others.
//
// Sluice has none of its own; but people write theirs into comments of a
// configuration, and programs theirs into a journal.
//
// Thread safety: pure functions.
#pragma once

#include <string>

namespace sluice::ctl {

struct WithoutSecrets {
  std::string text;
  int removed = 0;
};

// In place of each stands "(removed)": the value of a key that is called
// password, token, secret, credential, key or the like; what follows "Bearer"
// or "Basic"; user and password in an address; blocks of PEM. Of a line that
// is longer than 4,096 bytes the rest is cut.
WithoutSecrets RemoveSecrets(const std::string& text);

}  // namespace sluice::ctl

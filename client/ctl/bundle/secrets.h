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

// Puts "(removed)" in the place of each secret: the value of a key that is
// called password, token, secret, credential, key or the like; what follows
// "Bearer" or "Basic"; user and password in an address; blocks of PEM. Cuts
// lines after 4,096 bytes.
WithoutSecrets RemoveSecrets(const std::string& text);

}  // namespace sluice::ctl

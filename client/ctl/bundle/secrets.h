// Removes secrets from text that is sent to others. Sluice has none, but people
// write theirs into a configuration's comments, and programs into a journal.
// Thread safety: pure functions.
#pragma once

#include <string>

namespace sluice::ctl {

struct WithoutSecrets {
  std::string text;
  int removed = 0;
};

// Replaces each secret by "(removed)": the value of a key named password,
// token, secret, credential, key or the like; the text after "Bearer" or
// "Basic"; user and password in an address; PEM blocks. Cuts lines after 4,096
// bytes.
WithoutSecrets RemoveSecrets(const std::string& text);

}  // namespace sluice::ctl

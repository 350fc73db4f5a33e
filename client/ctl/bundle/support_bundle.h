// sluicectl support-bundle: one archive for a support request.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ctl/doctor/facts.h"

namespace sluice::ctl {

struct Item {
  std::string name;                  // "status.json"
  std::string what;                  // description for people
  absl::StatusOr<std::string> text;  // or the reason why it is missing
};

// Asks the daemon, reads files and runs tools for all items. Removes secrets
// from the configuration and the journal. Works without a daemon. Thread
// safety: one call at a time.
std::vector<Item> Collect(const SocketPaths& sockets, int64_t journal_lines);

struct BundleOptions {
  std::string out;  // a file or "-"; empty: a name made of host and time
  int64_t journal_lines = 2000;
  bool json = false;
};

// Formats contents.txt: what the bundle contains, what is missing, and why.
std::string RenderContents(const std::vector<Item>& items);

// Formats one line: {"file", "bytes", "contents": [{"name", "what"}],
// "left_out": [{"name", "what", "why"}]}.
std::string RenderBundleJson(const std::string& file, size_t bytes,
                             const std::vector<Item>& items);

// Writes a bundle that only this user may read. Returns the text to print.
absl::StatusOr<std::string> MakeSupportBundle(const SocketPaths& sockets,
                                              const BundleOptions& options);

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

// Returns a tar archive of files in a folder `name`, compressed by the system's
// gzip. Names have at most 100 bytes, as in POSIX's ustar.
absl::StatusOr<std::string> MakeTarGz(const std::string& name,
                                      const NamedTexts& files);

// Sluice has no secrets, but people may write their own into the comments of a
// configuration, and programs into a journal.
struct WithoutSecrets {
  std::string text;
  int removed = 0;
};

// Replaces each secret by "(removed)": the value of a key named password, token
// or the like; the text after "Bearer" or "Basic"; user and password in an
// address; PEM blocks. Cuts lines after 4,096 bytes.
WithoutSecrets RemoveSecrets(const std::string& text);

}  // namespace sluice::ctl

#include "tests/support/temp_dir.h"

#include <cstdlib>
#include <system_error>

#include "proto/base/status.h"

namespace sluice::testing {

TempDir::TempDir() {
  const char* root = std::getenv("TMPDIR");
  path_ = std::string(root ? root : "/tmp") + "/sluice-XXXXXX";
  SLUICE_CHECK(mkdtemp(path_.data()) != nullptr);
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace sluice::testing

// Tests that a process without free descriptors can still accept a connection,
// in order to refuse it.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "proto/base/unique_fd.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

// Opens files until the process has no free descriptor.
std::vector<UniqueFd> TakeAll() {
  std::vector<UniqueFd> taken;
  while (true) {
    UniqueFd fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd) return taken;
    taken.push_back(std::move(fd));
  }
}

class SpareFdTest : public ::testing::Test {
 protected:
  SpareFdTest() {
    getrlimit(RLIMIT_NOFILE, &limit_);
    const rlimit low = {64, limit_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &low);
    address_.sun_family = AF_UNIX;
    std::strncpy(address_.sun_path, directory_.File("s").c_str(),
                 sizeof(address_.sun_path) - 1);
    listener_ = UniqueFd(
        socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    EXPECT_EQ(bind(listener_.get(), Address(), sizeof(address_)), 0);
    EXPECT_EQ(listen(listener_.get(), 8), 0);
  }
  ~SpareFdTest() override { setrlimit(RLIMIT_NOFILE, &limit_); }

  const sockaddr* Address() const {
    return reinterpret_cast<const sockaddr*>(&address_);
  }
  UniqueFd Connect() const {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), Address(), sizeof(address_)), 0);
    return fd;
  }

  testing::TempDir directory_;
  rlimit limit_ = {};
  sockaddr_un address_ = {};
  UniqueFd listener_;
};

TEST_F(SpareFdTest, AWaitingConnectionIsAcceptedThoughNoDescriptorIsLeft) {
  SpareFd spare;
  const UniqueFd first = Connect(), second = Connect();
  std::vector<UniqueFd> all = TakeAll();
  EXPECT_EQ(accept(listener_.get(), nullptr, nullptr), -1);
  EXPECT_TRUE(SpareFd::IsShortage(errno));
  EXPECT_TRUE(spare.Take(listener_.get()));
  spare.Refill();  // the connection that was taken is closed
  UniqueFd taken = spare.Take(listener_.get());
  EXPECT_TRUE(taken);
  spare.Refill();  // no refill: `taken` is still open
  const UniqueFd none = spare.Take(listener_.get());
  EXPECT_FALSE(none) << "no connection waits, and no descriptor is spare";
}

TEST_F(SpareFdTest, NothingIsAcceptedUntilTheSpareDescriptorIsBack) {
  SpareFd spare;
  const UniqueFd waits = Connect();
  std::vector<UniqueFd> all = TakeAll();
  // Take(-1) closes the spare and accepts nothing. Another file takes the freed
  // descriptor.
  const UniqueFd nobody(spare.Take(-1));
  EXPECT_FALSE(nobody);
  all.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  spare.Refill();
  EXPECT_FALSE(spare.Take(listener_.get()));
  EXPECT_TRUE(SpareFd::IsShortage(errno));
  all.pop_back();
  spare.Refill();
  EXPECT_TRUE(spare.Take(listener_.get()));
}

}  // namespace
}  // namespace sluice

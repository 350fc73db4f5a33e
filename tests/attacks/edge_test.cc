// Another user attacks with descriptors that take long to close, profiles,
// repeated requests, a log that is not read, and HTTP. See scene.h.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/attacks/attackers.h"
#include "tests/attacks/edge_attackers.h"
#include "tests/attacks/scene.h"

namespace sluice::testing {
namespace {

class Edge : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0)
      GTEST_SKIP() << "only root can start processes of other users";
  }

  void Profiles(const std::string& name, int sessions,
                const std::string& profile) {
    scene_.Attack([&] { SubmitProfiles(scene_.socket(), sessions, profile); });
    ExpectUnharmed(scene_.Suffer(name));
  }
  void Http(const std::string& name, const std::string& begin,
            const std::string& piece) {
    const std::string address = scene_.daemon().ReadyField("http");
    for (int i = 0; i < Count(1, 4); ++i) {
      scene_.Attack([&] { SendHttp(address, begin, piece); });
    }
    ExpectUnharmed(scene_.Suffer(name));
  }

  Scene scene_;
};

// Guards against closing descriptors on the loop's thread, where one close took
// 9.7 s.
TEST_F(Edge, LingeringDescriptorsHarmNoOtherUser) {
  scene_.Attack([&] { SendLingering(scene_.socket()); });
  ExpectUnharmed(scene_.Suffer("lingering descriptors"));
}

// This test and the next three guard against unbounded queues: 20,015 profiles
// took 1 GB, and an answer was 14 s late.
TEST_F(Edge, ManyProfilesHarmNoOtherUser) {
  Profiles("profiles: many", Count(8, 64), SmallProfile());
}

TEST_F(Edge, HugeProfilesHarmNoOtherUser) {
  Profiles("profiles: huge", Count(2, 16), LongProfile());
}

TEST_F(Edge, ProfilesThatWouldExpandHarmNoOtherUser) {
  Profiles("profiles: bombs", Count(2, 16), BombProfile());
}

TEST_F(Edge, HardProfilesHarmNoOtherUser) {
  Profiles("profiles: hard", Count(2, 8), HardProfile());
}

TEST_F(Edge, RepeatedRequestsHarmNoOtherUser) {
  scene_.Attack([&] { Repeat(scene_.socket(), Count(20, 100)); });
  ExpectUnharmed(scene_.Suffer("repeated requests"));
}

// Guards against a blocking write to a full pipe.
TEST_F(Edge, AStalledStandardErrorHarmsNoUser) {
  const std::string path =
      fmt::format("/proc/{}/fd/2", scene_.daemon().process().pid());
  const UniqueFd error(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(error);
  const std::string much(4096, '\n');
  while (write(error.get(), much.data(), much.size()) > 0) {
  }
  scene_.Attack([&] { SendNoise(scene_.socket()); });
  ExpectUnharmed(scene_.Suffer("stalled stderr"));
}

TEST_F(Edge, EndlessHttpLinesHarmNoOtherUser) {
  Http("http: line", "GET /", "x");
}

TEST_F(Edge, EndlessHttpHeadersHarmNoOtherUser) {
  Http("http: header", "GET /metrics HTTP/1.1\r\nHost: h\r\nX: ", "x");
}

TEST_F(Edge, ManyHttpHeadersHarmNoOtherUser) {
  Http("http: many", "GET /metrics HTTP/1.1\r\nHost: h\r\n", "A: b\r\n");
}

TEST_F(Edge, ChunkedHttpBodiesHarmNoOtherUser) {
  Http("http: chunked",
       "POST /metrics HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "
       "chunked\r\n\r\n",
       "8\r\n01234567\r\n");
}

TEST_F(Edge, SlowHttpClientsHarmNoOtherUser) {
  const std::string address = scene_.daemon().ReadyField("http");
  scene_.Attack([&] { TrickleHttp(address, Count(100, 900)); });
  ExpectUnharmed(scene_.Suffer("http: trickling"));
}

TEST_F(Edge, IdleHttpConnectionsHarmNoOtherUser) {
  const std::string address = scene_.daemon().ReadyField("http");
  scene_.Attack([&] { IdleHttp(address, Count(300, 900)); });
  ExpectUnharmed(scene_.Suffer("http: idle"));
}

}  // namespace
}  // namespace sluice::testing

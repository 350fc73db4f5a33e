// Another user takes what is countable, floods, or reads nothing. See scene.h.
#include <unistd.h>

#include "gtest/gtest.h"
#include "tests/attacks/attackers.h"
#include "tests/attacks/scene.h"

namespace sluice::testing {
namespace {

class Attacks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can start another user";
  }
};

// Wrong once: one user took all 2,048.
TEST_F(Attacks, Sessions) {
  Scene scene;
  scene.Attack([&] { TakeSessions(scene.socket(), 2100, /*ranks=*/false); });
  ExpectUnharmed(scene.Suffer("sessions"));
}

// Wrong once: one user took all 256.
TEST_F(Attacks, RankSlots) {
  Scene scene;
  scene.Attack([&] { TakeSessions(scene.socket(), 300, /*ranks=*/true); });
  ExpectUnharmed(scene.Suffer("rank slots"));
}

TEST_F(Attacks, HalfOpenFloods) {
  Scene scene;
  scene.Attack([&] { StayHalfOpen(scene.socket(), Count(300, 2000)); });
  ExpectUnharmed(scene.Suffer("half-open"));
}

// Wrong once: each connection had a turn, and an honest request took 13 s.
TEST_F(Attacks, Queries) {
  Scene scene;
  scene.Attack([&] { AskForEverything(scene.socket(), Count(40, 200)); });
  ExpectUnharmed(scene.Suffer("queries"));
}

TEST_F(Attacks, Refusals) {
  Scene scene;
  scene.Attack([&] { BeRefused(scene.socket(), Count(20, 200)); });
  ExpectUnharmed(scene.Suffer("refusals"));
}

TEST_F(Attacks, Noise) {
  Scene scene;
  scene.Attack([&] { SendNoise(scene.socket()); });
  ExpectUnharmed(scene.Suffer("noise"));
}

}  // namespace
}  // namespace sluice::testing

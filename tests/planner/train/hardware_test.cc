// Tests that hardware profiles are read and written, and that errors name the
// field.
#include "planner/train/hardware.h"

#include "tests/support/status_matchers.h"

namespace sluice::planner::train {
namespace {

using ::sluice::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::string Profile(const std::string& gpu_extra = "",
                    const std::string& matmul = "0.5",
                    const std::string& kernels_extra = "") {
  return "name = 'mine'\n[gpu]\npeak_flops = 1e12\nmemory_bytes = 1e9\n"
         "memory_bytes_per_s = 1e11\n" +
         gpu_extra + "[kernels]\nmatmul = " + matmul +
         "\nattention_forward = 0.5\nattention_backward = 0.4\n" +
         kernels_extra +
         "[node]\ngpus = 2\nhost_memory_bytes = 1e10\n"
         "[links]\nhost_bytes_per_s = 1e9\ngpu_bytes_per_s = 2e9\n"
         "network_bytes_per_s = 3\n";
}

TEST(TrainHardware, AllShippedProfilesAreReadAndHaveTheirName) {
  EXPECT_THAT(
      HardwareNames(),
      IsSupersetOf({"a800-80g", "fpdt-a100-40g", "fpdt-a100-80g", "dgx-a100",
                    "dgx-a100-40g", "h100-80g", "h200-141g", "gh200", "b200"}));
  for (const std::string& name : HardwareNames()) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const Hardware hardware, FindHardware(name));
    EXPECT_EQ(hardware.name, name);
  }
  EXPECT_THAT(FindHardware("v100"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("a800-80g")));
}

TEST(TrainHardware, AWrittenProfileReadsAsTheSame) {
  std::vector<Hardware> all;
  for (const std::string& name : HardwareNames()) {
    all.push_back(*FindHardware(name));
  }
  Hardware every = *FindHardware("h100-80g");
  every.attention_head_dim = 128;
  every.narrow_forward_efficiency = 0.3;
  every.narrow_backward_efficiency = 0.2;
  every.matmul_fp32_efficiency = 0.1;
  every.ring_bytes_per_s = 7e9;
  every.reorganisation_s_per_byte = 1e-10;
  all.push_back(every);
  for (const Hardware& hardware : all) {
    const auto read = ReadHardware(
        WriteHardware(hardware,
                      [](std::string_view key) { return std::string(key); }),
        "written");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == hardware) << hardware.name;
  }
}

TEST(TrainHardware, A100IsANodeOfEightAndFpdtsClusterHasItsOwnName) {
  for (const auto& [name, meant] : {std::pair("a100-80g", "dgx-a100"),
                                    std::pair("a100-40g", "dgx-a100-40g")}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const Hardware hardware, FindHardware(name));
    EXPECT_EQ(hardware.name, meant);
    EXPECT_EQ(hardware.gpus_per_node, 8);
    EXPECT_THAT(hardware.note, HasSubstr(std::string("fpdt-") + name));
  }
  for (const char* name : {"fpdt-a100-40g", "fpdt-a100-80g"}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const Hardware hardware, FindHardware(name));
    EXPECT_EQ(hardware.gpus_per_node, 4);
    EXPECT_EQ(hardware.network_bytes_per_s, 5e9);
    EXPECT_THAT(hardware.note, HasSubstr("FPDT"));
  }
}

TEST(TrainHardware, ReorganisationBelongsToTheMachineItWasSeenOn) {
  for (const std::string& name : HardwareNames()) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const Hardware hardware, FindHardware(name));
    EXPECT_EQ(hardware.reorganisation_s_per_byte > 0, name == "a800-80g")
        << name;
  }
  SLUICE_ASSERT_OK_AND_ASSIGN(const Hardware without,
                              ReadHardware(Profile(), "p"));
  EXPECT_EQ(without.reorganisation_s_per_byte, 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const Hardware with,
      ReadHardware(
          Profile() + "[allocator]\nreorganisation_s_per_byte = 1e-9\n", "p"));
  EXPECT_EQ(with.reorganisation_s_per_byte, 1e-9);
}

TEST(TrainHardware, KeysAreReadAndWholeNumbersCountAsNumbers) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Hardware read,
                              ReadHardware(Profile(), "p.toml"));
  EXPECT_EQ(read.gpus_per_node, 2);
  EXPECT_EQ(read.network_bytes_per_s, 3);
  EXPECT_EQ(read.name, "mine");
  EXPECT_EQ(read.peak_flops, 1e12);
  EXPECT_EQ(read.matmul_efficiency, 0.5);
  EXPECT_EQ(read.host_link_bytes_per_s, 1e9);
  EXPECT_EQ(read.gpu_link_bytes_per_s, 2e9);
}

TEST(TrainHardware, ARingHasAllCardsOfANodeUnlessItsKeyIsGiven) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Hardware without,
                              ReadHardware(Profile(), "p"));
  EXPECT_EQ(without.ring_bytes_per_s, 2 * 3);
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const Hardware with,
      ReadHardware(Profile() + "ring_bytes_per_s = 5\n", "p"));
  EXPECT_EQ(with.ring_bytes_per_s, 5);
}

TEST(TrainHardware, AttentionsSpeedDependsOnTheHeadSize) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Hardware untold,
                              ReadHardware(Profile(), "p"));
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const Hardware both,
      ReadHardware(Profile("", "0.5",
                           "attention_head_dim = 128\n"
                           "attention_forward_64 = 0.3\n"
                           "attention_backward_64 = 0.2\n"),
                   "p"));
  for (const int64_t dim : {16, 64, 80, 128, 256}) {
    EXPECT_EQ(untold.AttentionForward(dim), 0.5);
    EXPECT_EQ(untold.AttentionBackward(dim), 0.4);
    EXPECT_FALSE(untold.OtherHeads(dim));
    EXPECT_EQ(both.AttentionForward(dim), dim <= 64 ? 0.3 : 0.5);
    EXPECT_EQ(both.AttentionBackward(dim), dim <= 64 ? 0.2 : 0.4);
    EXPECT_FALSE(both.OtherHeads(dim));
  }
  // The file has attention of narrow heads only.
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const Hardware narrow,
      ReadHardware(Profile("", "0.5", "attention_head_dim = 64\n"), "p"));
  EXPECT_EQ(narrow.AttentionForward(128), 0.5);
  EXPECT_TRUE(narrow.OtherHeads(128));
  EXPECT_FALSE(narrow.OtherHeads(64));
}

TEST(TrainHardware, Fp32ProductsAreHalfAsFastUnlessTheirKeyIsGiven) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Hardware untold,
                              ReadHardware(Profile(), "p"));
  EXPECT_EQ(untold.matmul_fp32_efficiency, 0.25);
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const Hardware told,
      ReadHardware(Profile("", "0.5", "matmul_fp32 = 0.45\n"), "p"));
  EXPECT_EQ(told.matmul_fp32_efficiency, 0.45);
}

// A name goes to the terminal.
TEST(TrainHardware, ControlCharactersOfANameAreReplaced) {
  std::string text = Profile();
  text.replace(0, text.find('\n'), R"(name = "a\u001b[31m\nb")");
  SLUICE_ASSERT_OK_AND_ASSIGN(const Hardware read, ReadHardware(text, "p"));
  EXPECT_EQ(read.name, "a?[31m?b");
}

// Bytes are counted in int64_t.
TEST(TrainHardware, MoreHostMemoryThanCanBeCountedIsRefused) {
  std::string text = Profile();
  text.replace(text.find("1e10"), 4, "1e19");
  EXPECT_THAT(ReadHardware(text, "p"),
              StatusIs(kInvalid, HasSubstr("'node.host_memory_bytes' is 1e")));
}

TEST(TrainHardware, FaultsNameFileKeyAndLimit) {
  EXPECT_THAT(
      ReadHardware(Profile("", "0.5", "attention_forward_64 = 0.3\n"), "p"),
      StatusIs(kInvalid, HasSubstr("give both or neither")));
  for (const char* dim : {"0", "-1", "1025", "64.5", "'many'"}) {
    EXPECT_THAT(
        ReadHardware(Profile("", "0.5",
                             std::string("attention_head_dim = ") + dim + "\n"),
                     "p"),
        StatusIs(kInvalid, HasSubstr("'kernels.attention_head_dim'")))
        << dim;
  }
  EXPECT_THAT(ReadHardware("name = ", "p.toml"),
              StatusIs(kInvalid, HasSubstr("p.toml: line 1")));
  EXPECT_THAT(ReadHardware(Profile("speed = 3\n"), "p"),
              StatusIs(kInvalid, HasSubstr("unknown key 'gpu.speed'")));
  EXPECT_THAT(ReadHardware("colour = 'red'\n" + Profile(), "p"),
              StatusIs(kInvalid, HasSubstr("unknown key 'colour'")));
  // A long key is quoted in part only.
  const auto long_key =
      ReadHardware(std::string(3000, 'k') + " = 1\n" + Profile(), "p");
  EXPECT_THAT(long_key, StatusIs(kInvalid, HasSubstr("unknown key 'kkk")));
  EXPECT_LT(long_key.status().message().size(), 1100u);
  EXPECT_THAT(ReadHardware(Profile("", "1.5"), "p"),
              StatusIs(kInvalid, HasSubstr("'kernels.matmul' is 1.5")));
  EXPECT_THAT(ReadHardware(Profile("", "nan"), "p"),
              StatusIs(kInvalid, HasSubstr("'kernels.matmul'")));
  EXPECT_THAT(ReadHardware(Profile("", "'fast'"), "p"),
              StatusIs(kInvalid, HasSubstr("'kernels.matmul' is missing")));
  EXPECT_THAT(ReadHardware("", "p"),
              StatusIs(kInvalid, HasSubstr("'node.gpus' is 0")));
}

}  // namespace
}  // namespace sluice::planner::train

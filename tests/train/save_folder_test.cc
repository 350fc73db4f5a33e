#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "client/train/checkpoint/checkpoint_files.h"
#include "client/train/checkpoint/safetensors.h"
#include "client/train/run_report.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::train {
namespace {

namespace fs = std::filesystem;
using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const RunIdentity kOwn{"aaaaaaaaaaaaaaaa", "text", 100};
const RunIdentity kOther{"bbbbbbbbbbbbbbbb", "text", 100};
constexpr auto kBad = absl::StatusCode::kInvalidArgument;

void WriteTensors(const std::string& path) {
  auto writer = SafetensorsWriter::Create(path, {{"a", TensorType::kF32, {1}}});
  SLUICE_CHECK_OK(writer.status());
  const float one = 1;
  SLUICE_CHECK_OK((*writer)->Append(&one, sizeof(one)));
  SLUICE_CHECK_OK((*writer)->Close());
}

// Writes the files that make a checkpoint whole.
void Fill(const std::string& checkpoint, int64_t step, const RunIdentity& run) {
  fs::create_directories(checkpoint);
  WriteTensors(WeightsFile(checkpoint));
  WriteTensors(OptimizerFile(checkpoint, 0, 1));
  StateFile state;
  state.step = step;
  state.identity = run;
  SLUICE_CHECK_OK(WriteState(checkpoint, RunOptions(), state));
}

class SaveFolderTest : public ::testing::Test {
 protected:
  std::string folder() const { return dir_.File("save"); }
  absl::Status Save(SaveFolder& into, int64_t step) {
    SLUICE_RETURN_IF_ERROR(into.Begin(step));
    Fill(SaveFolder::Temporary(folder(), step), step, kOwn);
    return into.Commit(step);
  }
  absl::StatusOr<std::unique_ptr<SaveFolder>> Claim(
      const StateFile* goes_on_from = nullptr) {
    return SaveFolder::Claim(folder(), kOwn, goes_on_from);
  }
  sluice::testing::TempDir dir_;
};

// Each job probes a folder of its own below the same missing parent, and then
// makes the folder.
TEST_F(SaveFolderTest, JobsThatShareANewParentDoNotDisturbEachOther) {
  for (int round = 0; round < 100; ++round) {
    const std::string parent = dir_.File("parent" + std::to_string(round));
    std::vector<absl::Status> ends(3);
    std::vector<std::thread> jobs;
    for (size_t job = 0; job < ends.size(); ++job) {
      jobs.emplace_back([&, job] {
        const std::string own = parent + "/new/job" + std::to_string(job);
        ends[job] = CheckSaveFolder(own);
        if (ends[job].ok()) {
          ends[job] = SaveFolder::Claim(own, kOwn, nullptr).status();
        }
      });
    }
    for (std::thread& job : jobs) job.join();
    for (const absl::Status& end : ends) ASSERT_THAT(end, IsOk());
  }
}

TEST_F(SaveFolderTest, CheckingAFolderLeavesNothing) {
  ASSERT_THAT(CheckSaveFolder(dir_.File("a/b/c")), IsOk());
  EXPECT_FALSE(fs::exists(dir_.File("a")));
  EXPECT_TRUE(fs::is_empty(dir_.File("")));
}

TEST_F(SaveFolderTest, AFolderThatCannotBeMadeIsRefused) {
  EXPECT_THAT(CheckSaveFolder("/proc/self/save"), StatusIs(kBad));
}

RunOptions Chosen() {
  RunOptions options;
  options.chunk = 64;
  options.prefetch = 3;
  return options;
}

std::string KeyOf(const RunOptions& options) {
  return PlanKey(options, 2, MiB(16), "", false, {});
}

TEST(PlanKey, HoldsTheSettingsThatItWasMadeFrom) {
  RunOptions options = Chosen();
  auto told = SettingsOf(KeyOf(options));
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(*told, (stream::Settings{.chunk = 64, .prefetch = 3}));
  options.order = stream::BackwardOrder::kQueriesOuter;
  options.rerun_chunks = 5;
  options.rerun_layers = 2;
  options.kept = 0.25;
  told = SettingsOf(KeyOf(options));
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(*told,
            (stream::Settings{.chunk = 64,
                              .prefetch = 3,
                              .order = stream::BackwardOrder::kQueriesOuter,
                              .rerun_layers = 2,
                              .rerun_chunks = 5,
                              .kept = 0.25}));
  options = Chosen();
  options.resident = true;
  EXPECT_TRUE(SettingsOf(KeyOf(options))->resident);
}

TEST(PlanKey, HoldsNoImpossibleSettings) {
  const auto told = [](int64_t chunk, int prefetch, int64_t rerun,
                       int64_t rerun_layers) {
    RunOptions options;
    options.chunk = chunk;
    options.prefetch = prefetch;
    options.rerun_chunks = rerun;
    options.rerun_layers = rerun_layers;
    return SettingsOf(KeyOf(options)).has_value();
  };
  EXPECT_TRUE(told(1, 1, 0, 0));
  EXPECT_TRUE(told(1, 64, 1, 1));
  EXPECT_FALSE(told(0, 1, 0, 0));
  EXPECT_FALSE(told(1, 0, 0, 0));
  EXPECT_FALSE(told(1, 65, 0, 0));
  EXPECT_FALSE(told(1, 1, 1, 0));
  EXPECT_FALSE(SettingsOf("text").has_value());
  EXPECT_FALSE(SettingsOf(R"({"--chunk":8,"--prefetch":2})").has_value());
}

TEST(PlanKey, NamesTheFlagThatDiffers) {
  const std::string base = KeyOf(Chosen());
  const auto why = [&](auto change) {
    RunOptions options = Chosen();
    change(options);
    const std::string other = KeyOf(options);
    EXPECT_NE(other, base);
    return WhyAnotherKey(base, other);
  };
  EXPECT_THAT(why([](auto& o) { o.seq_len = 77; }), HasSubstr("--seq-len 77"));
  EXPECT_THAT(why([](auto& o) { o.chunk = 65; }), HasSubstr("--chunk 65"));
  EXPECT_THAT(why([](auto& o) { o.alpha = 0.5; }), HasSubstr("--alpha 0.5"));
  EXPECT_THAT(why([](auto& o) { o.keep = false; }), HasSubstr("no --no-keep"));
  EXPECT_THAT(why([](auto& o) {
                o.fractions["q"] = {0.25, 0.5};
              }),
              HasSubstr(R"(--fractions {"q":[0.25,0.5]})"));
  EXPECT_THAT(why([](auto& o) { o.prefetch = 4; }), HasSubstr("--prefetch 4"));
  EXPECT_THAT(
      why([](auto& o) { o.order = stream::BackwardOrder::kQueriesOuter; }),
      HasSubstr("queries"));
  EXPECT_THAT(why([](auto& o) { o.rerun_chunks = 3; }), HasSubstr("--rerun 3"));
  EXPECT_THAT(why([](auto& o) { o.kept = 0.125; }), HasSubstr("0.125"));
  EXPECT_THAT(why([](auto& o) { o.resident = true; }),
              AllOf(HasSubstr("with not everything kept"),
                    HasSubstr("has everything kept")));
  const RunOptions o = Chosen();
  const auto hbm = PlanKey(o, 2, MiB(17), "", false, {});
  EXPECT_THAT(WhyAnotherKey(base, hbm),
              AllOf(HasSubstr("with 16 MiB"), HasSubstr("has 17 MiB")));
  EXPECT_THAT(WhyAnotherKey(base, PlanKey(o, 3, MiB(16), "", false, {})),
              HasSubstr("ranks 3"));
  const auto kernel = PlanKey(o, 2, MiB(16), "flash", true, {});
  EXPECT_THAT(WhyAnotherKey(base, kernel), HasSubstr("flash"));
  EXPECT_THAT(WhyAnotherKey(kernel, base), HasSubstr("flash"));
  const auto host =
      PlanKey(o, 2, MiB(16), "", false, stream::StatePlace::kHost);
  EXPECT_THAT(WhyAnotherKey(base, host), HasSubstr("states in host memory"));
}

TEST_F(SaveFolderTest, OneProcessAtATimeSavesIntoAFolder) {
  SLUICE_ASSERT_OK_AND_ASSIGN(auto first, Claim());
  EXPECT_THAT(Claim(), StatusIs(kBad, HasSubstr("saving into it now")));
  first.reset();
  // The claim removes the folder that it made, because nothing was saved.
  EXPECT_FALSE(fs::exists(folder()));
  EXPECT_THAT(Claim(), IsOk());
}

TEST_F(SaveFolderTest, AFolderWithAnotherRunsCheckpointIsRefused) {
  Fill(folder() + "/checkpoint-3", 3, kOther);
  EXPECT_THAT(Claim(), StatusIs(kBad, AllOf(HasSubstr("run " + kOther.run),
                                            HasSubstr("--resume"))));
  // An incomplete checkpoint belongs to no run.
  fs::remove(WeightsFile(folder() + "/checkpoint-3"));
  EXPECT_THAT(Claim(), IsOk());
}

TEST_F(SaveFolderTest, ARunDoesNotSaveIntoAFolderWithLaterSteps) {
  Fill(folder() + "/checkpoint-3", 3, kOwn);
  Fill(folder() + "/checkpoint-6", 6, kOwn);
  StateFile from;
  from.step = 3;
  EXPECT_THAT(Claim(&from), StatusIs(kBad, HasSubstr("checkpoint-6")));
  from.step = 6;
  EXPECT_THAT(Claim(&from), IsOk());
}

TEST_F(SaveFolderTest, FilesOfADeadProcessAreRestoredOrRemoved) {
  Fill(folder() + "/checkpoint-3.old", 3, kOwn);
  Fill(folder() + "/checkpoint-6.old", 6, kOwn);
  Fill(folder() + "/checkpoint-6", 6, kOwn);
  Fill(folder() + "/checkpoint-9.tmp", 9, kOwn);
  StateFile from;
  from.step = 6;
  ASSERT_THAT(Claim(&from), IsOk());
  // checkpoint-3.old is restored: the process died before it put the new
  // checkpoint in checkpoint-3's place.
  EXPECT_THAT(StepsIn(folder()), ElementsAre(6, 3));
  EXPECT_FALSE(fs::exists(folder() + "/checkpoint-6.old"));
  EXPECT_FALSE(fs::exists(folder() + "/checkpoint-9.tmp"));
}

TEST_F(SaveFolderTest, RotationKeepsTheNewestWholeCheckpoints) {
  SLUICE_ASSERT_OK_AND_ASSIGN(auto save, Claim());
  for (const int64_t step : {3, 6, 9, 12}) {
    ASSERT_THAT(Save(*save, step), IsOk());
  }
  // checkpoint-9 is incomplete now, so Rotate does not count it.
  fs::remove(WeightsFile(folder() + "/checkpoint-9"));
  save->Rotate(2);
  EXPECT_THAT(StepsIn(folder()), ElementsAre(12, 6));
  save->Rotate(0);
  EXPECT_THAT(StepsIn(folder()), ElementsAre(12, 6));
  save->Rotate(1);
  EXPECT_THAT(StepsIn(folder()), ElementsAre(12));
}

TEST_F(SaveFolderTest, RotationKeepsTheResumedCheckpointUntilANewerIsWhole) {
  Fill(folder() + "/checkpoint-3", 3, kOwn);
  StateFile from;
  from.step = 3;
  SLUICE_ASSERT_OK_AND_ASSIGN(auto save, Claim(&from));
  ASSERT_THAT(save->Begin(6), IsOk());
  save->Abandon(6);  // the disk is full
  save->Rotate(1);
  EXPECT_THAT(StepsIn(folder()), ElementsAre(3));
  ASSERT_THAT(Save(*save, 9), IsOk());
  save->Rotate(1);
  EXPECT_THAT(StepsIn(folder()), ElementsAre(9));
}

TEST_F(SaveFolderTest, ACheckpointOfTheSameStepIsReplacedWhole) {
  SLUICE_ASSERT_OK_AND_ASSIGN(auto save, Claim());
  ASSERT_THAT(Save(*save, 3), IsOk());
  ASSERT_THAT(Save(*save, 3), IsOk());
  EXPECT_THAT(StepsIn(folder()), ElementsAre(3));
  EXPECT_THAT(ReadWhole(folder() + "/checkpoint-3"), IsOk());
}

TEST_F(SaveFolderTest, TheNewestWholeCheckpointIsFoundAndTheOthersAreNamed) {
  Fill(folder() + "/checkpoint-6", 6, kOwn);
  Fill(folder() + "/checkpoint-8", 8, kOwn);
  fs::resize_file(OptimizerFile(folder() + "/checkpoint-8", 0, 1), 20);
  fs::create_directories(folder() + "/checkpoint-9");
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto found, FindCheckpoint(folder()));
  EXPECT_EQ(found.path, folder() + "/checkpoint-6");
  EXPECT_EQ(found.state.step, 6);
  EXPECT_THAT(found.passed_over, AllOf(HasSubstr("checkpoint-8 is not whole"),
                                       HasSubstr("checkpoint-9 is not whole")));
}

TEST_F(SaveFolderTest, CheckpointsOfTwoRunsAreToldApart) {
  Fill(folder() + "/checkpoint-6", 6, kOwn);
  Fill(folder() + "/checkpoint-9", 9, kOther);
  EXPECT_THAT(FindCheckpoint(folder()),
              StatusIs(kBad, AllOf(HasSubstr(kOwn.run), HasSubstr(kOther.run),
                                   HasSubstr("name one"))));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto named,
                              FindCheckpoint(folder() + "/checkpoint-6"));
  EXPECT_EQ(named.state.identity.run, kOwn.run);
}

TEST_F(SaveFolderTest, AStateFitsOnlyTheModelThatWroteIt) {
  RunOptions options;
  fs::create_directories(folder());
  StateFile state;
  state.step = 3;
  state.next_token = 40;
  state.ranks = 4;
  state.identity = kOwn;
  options.seq_len = 10;
  SLUICE_CHECK_OK(WriteState(folder(), options, state));
  SLUICE_ASSERT_OK_AND_ASSIGN(const StateFile read, ReadState(folder()));
  EXPECT_EQ(read.step, 3);
  EXPECT_EQ(read.next_token, 40);
  EXPECT_EQ(read.ranks, 4);
  EXPECT_EQ(read.seq_len, 10);
  EXPECT_EQ(read.identity.run, kOwn.run);
  EXPECT_EQ(read.identity.data, kOwn.data);
  EXPECT_EQ(read.identity.data_tokens, 100);
  EXPECT_THAT(CheckFlags(folder(), options), IsOk());
  options.seq_len = 11;  // matters only with learned positions
  EXPECT_EQ(CheckFlags(folder(), options).ok(),
            options.model.max_positions == 0);
  ++options.model.layers;
  EXPECT_THAT(CheckFlags(folder(), options),
              StatusIs(kBad, HasSubstr("--layers")));
  for (const char* const json : {"[]", "{}", R"({"model":{"--layers":2}})"}) {
    std::ofstream(StatePath(folder())) << json;
    EXPECT_THAT(CheckFlags(folder(), options), StatusIs(kBad));
    EXPECT_THAT(ReadState(folder()), StatusIs(kBad));
  }
}

TEST(StateFile, AFormat1CursorCountsSequencesOfItsLength) {
  StateFile state;
  state.format = 1;
  state.seq_len = 10;
  state.next_sequence = 7;
  EXPECT_EQ(state.NextToken(31), 10);  // three sequences in each pass
  EXPECT_EQ(state.NextToken(40), 10);  // a fourth sequence needs 41 tokens
  EXPECT_EQ(state.NextToken(1000), 70);
  state.format = 2;
  state.next_token = 35;
  EXPECT_EQ(state.NextToken(1000), 35);
}

TEST(JsonlFile, LinesWaitIfTheDiskIsFullAndTheErrorIsReportedOnce) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto file, JsonlFile::Open("/dev/full"));
  EXPECT_THAT(file->Append("{}"), HasSubstr("No space left"));
  EXPECT_THAT(file->Append("{}"), IsEmpty());
  EXPECT_EQ(file->waiting(), 2);
  file->Append(std::string(2 << 20, 'x'));
  EXPECT_EQ(file->lost(), 1);
}

TEST(JsonlFile, LinesAreAppendedToTheFile) {
  const sluice::testing::TempDir dir;
  std::ofstream(dir.File("log")) << "before\n";
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto file,
                              JsonlFile::Open(dir.File("log")));
  file->Append("one");
  file->Append("two");
  EXPECT_EQ(file->waiting(), 0);
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto text, ReadFile(dir.File("log")));
  EXPECT_EQ(text, "before\none\ntwo\n");
}

}  // namespace
}  // namespace sluice::train

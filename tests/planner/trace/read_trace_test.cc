// Tests the readers of traces: the meaning of each format, and one-line errors.
#include "planner/trace/read_trace.h"

#include <fmt/format.h>

#include <sstream>

#include "gmock/gmock.h"
#include "planner/trace/readers.h"
#include "proto/plan/codec.h"
#include "tests/planner/generator.h"
#include "tests/support/status_matchers.h"

namespace sluice::planner {
namespace {

using ::sluice::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<NamedTrace> Read(const std::string& text,
                                TraceOptions options = {}) {
  options.file = "t";
  std::istringstream in(text);
  return ReadTrace(in, options);
}

// Returns lifetimes and sizes as text.
std::vector<std::string> Rows(const NamedTrace& named) {
  std::vector<std::string> rows;
  for (size_t k = 0; k < named.names.size(); ++k) {
    const plan::Buffer& b = named.trace.buffers[k];
    rows.push_back(fmt::format("{} [{}, {}) {}", named.names[k], b.lower,
                               b.upper, b.size.count()));
  }
  return rows;
}

// Returns the error, and expects no line ends or control characters in it.
std::string ReadRefusal(const std::string& text,
                        const TraceOptions& options = {}) {
  const auto read = Read(text, options);
  if (read.ok()) return "accepted";
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(read.status().message());
  for (const char c : message) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
  return message;
}

// ---- MiniMalloc CSV --------------------------------------------------------

TEST(CsvTrace, ColumnsComeInAnyOrderAndLifetimesAreHalfOpen) {
  const auto named = Read("size,id,upper,lower\n10,a,5,0\n7,b,9,5\n");
  ASSERT_THAT(named, IsOk());
  EXPECT_THAT(Rows(*named), ElementsAre("a [0, 5) 10", "b [5, 9) 7"));
  EXPECT_EQ(named->trace.alignment, Bytes(1));
  EXPECT_EQ(named->trace.end, 9);
}

TEST(CsvTrace, ThePlanRepeatsTheRowsAndAddsOffset) {
  const auto named = Read("size,id,upper,lower,what\n10,a,5,0,x\n7,b,9,5,y\n");
  ASSERT_THAT(named, IsOk());
  EXPECT_EQ(PlanCsv(*named, {Bytes(0), Bytes(64)}),
            "size,id,upper,lower,what,offset\n10,a,5,0,x,0\n7,b,9,5,y,64\n");
}

TEST(CsvTrace, APlanCanBePlannedAgain) {
  const auto named = Read("id,offset,lower,upper,size\n1,77,0,2,8\n");
  ASSERT_THAT(named, IsOk());
  EXPECT_EQ(PlanCsv(*named, {Bytes(0)}),
            "id,lower,upper,size,offset\n1,0,2,8,0\n");
}

TEST(CsvTrace, LineEndsBlankLinesAndAByteOrderMarkDoNotMatter) {
  const auto named =
      Read("\xef\xbb\xbfid,lower,upper,size\r\n\r\n1, 0 ,2,8\r\n\n2,1,3,0");
  ASSERT_THAT(named, IsOk());
  EXPECT_THAT(Rows(*named), ElementsAre("1 [0, 2) 8", "2 [1, 3) 0"));
}

TEST(CsvTrace, TimesMayBeBelowZeroAndATraceMayBeEmpty) {
  EXPECT_THAT(Read("id,lower,upper,size\n1,-5,2,8\n"), IsOk());
  EXPECT_THAT(Read("id,lower,upper,size\n"), IsOk());
}

TEST(CsvTrace, ErrorsNameLineColumnAndValue) {
  const std::string header = "id,lower,upper,size\n";
  EXPECT_THAT(ReadRefusal(header + "1,0,4,8\n2,5,5,8\n"),
              HasSubstr("t:3:5: upper = 5 is not above lower = 5"));
  EXPECT_THAT(ReadRefusal(header + "1,7,5,8\n"), HasSubstr("t:2:5: upper = 5"));
  EXPECT_THAT(ReadRefusal(header + "1,0,4,-8\n"),
              HasSubstr("t:2:7: size = -8 is below 0"));
  EXPECT_THAT(ReadRefusal(header + "1,0,4,8\n1,5,6,8\n"),
              HasSubstr("t:3:1: id '1' occurs twice"));
  EXPECT_THAT(ReadRefusal(header + "1,0,4,8.5\n"),
              HasSubstr("t:2:7: size = '8.5' is no whole number"));
  EXPECT_THAT(ReadRefusal(header + "1,0,x,8\n"),
              HasSubstr("t:2:5: upper = 'x'"));
  EXPECT_THAT(ReadRefusal(header + "1,,3,8\n"), HasSubstr("t:2:3: lower = ''"));
  EXPECT_THAT(ReadRefusal(header + ",0,3,8\n"),
              HasSubstr("t:2:1: id is empty"));
  EXPECT_THAT(ReadRefusal(header + "1,0,3\n"),
              HasSubstr("t:2: 3 fields in '1,0,3', the header has 4"));
  EXPECT_THAT(ReadRefusal(header + "1,0,3,8,9\n"), HasSubstr("t:2: 5 fields"));
}

TEST(CsvTrace, NumbersThatWouldOverflowAreRefused) {
  const std::string header = "id,lower,upper,size\n";
  EXPECT_THAT(ReadRefusal(header + "1,0,4,99999999999999999999\n"),
              HasSubstr("t:2:7: size = '99999999999999999999'"));
  EXPECT_THAT(ReadRefusal(header + "1,0,4,9223372036854775807\n"),
              HasSubstr("t:2:7: size = 9223372036854775807 makes the sizes "
                        "sum to more than 1152921504606846976"));
  EXPECT_THAT(ReadRefusal(header + "1,0,4,1152921504606846000\n2,0,4,1000\n"),
              HasSubstr("t:3:7: size = 1000 makes the sizes"));
  EXPECT_THAT(ReadRefusal(header + "1,0,9223372036854775807,8\n"),
              HasSubstr("t:2:5: upper = 9223372036854775807 is beyond"));
}

TEST(CsvTrace, TheLargestAlignmentHoldsForAllRows) {
  const std::string header = "id,lower,upper,size,alignment\n";
  const auto same = Read(header + "1,0,3,8,64\n2,0,3,8,64\n");
  ASSERT_THAT(same, IsOk());
  EXPECT_EQ(same->trace.alignment, Bytes(64));
  EXPECT_TRUE(same->notes.empty());
  const auto mixed = Read(header + "1,0,3,8,64\n2,0,3,8,512\n");
  ASSERT_THAT(mixed, IsOk());
  EXPECT_EQ(mixed->trace.alignment, Bytes(512));
  ASSERT_EQ(mixed->notes.size(), 1u);
  EXPECT_THAT(mixed->notes[0], HasSubstr("multiples of 512"));
  const auto given = Read(header + "1,0,3,8,64\n", {.alignment = Bytes(256)});
  ASSERT_THAT(given, IsOk());
  EXPECT_EQ(given->trace.alignment, Bytes(256));
  EXPECT_THAT(ReadRefusal(header + "1,0,3,8,48\n"),
              HasSubstr("t:2:9: alignment = 48"));
}

TEST(CsvTrace, AnEmptyGapIsAcceptedAndAGapIsRefusedInItsRow) {
  const std::string header = "id,lower,upper,size,gaps\n";
  EXPECT_THAT(Read(header + "1,0,3,8,\n"), IsOk());
  EXPECT_THAT(ReadRefusal(header + "1,0,3,8,\n2,0,9,8,2-5\n"),
              HasSubstr("t:3:9: a lifetime with gaps"));
}

TEST(CsvTrace, MissingAndDuplicateColumnsAreNamed) {
  EXPECT_THAT(ReadRefusal("id,lower,size\n1,0,8\n"),
              HasSubstr("t:1: column 'upper' is missing"));
  EXPECT_THAT(ReadRefusal("id,lower,size,upper,size\n"),
              HasSubstr("t:1:21: column 'size' occurs twice"));
}

// ---- Request log -----------------------------------------------------------

TEST(RequestLog, ARequestsTimeIsItsLineAndUnfreedBuffersLiveToTheEnd) {
  const auto named = Read("malloc a 512\nmalloc b 100\nfree a\n");
  ASSERT_THAT(named, IsOk());
  EXPECT_THAT(Rows(*named), ElementsAre("a [1, 3) 512", "b [2, 4) 100"));
  EXPECT_EQ(named->trace.alignment, Bytes(512));
}

TEST(RequestLog, AnIdMayReturnAfterItsFree) {
  const auto named =
      Read("# step 1\nmalloc 7 8\nfree 7\n\nmalloc 7 16\nfree 7\n");
  ASSERT_THAT(named, IsOk());
  EXPECT_THAT(Rows(*named), ElementsAre("7 [2, 3) 8", "7#2 [5, 6) 16"));
  // The plan's ids are distinct, so that the plan can be read as a trace.
  EXPECT_THAT(Read(PlanCsv(*named, {Bytes(0), Bytes(0)})), IsOk());
}

TEST(RequestLog, ErrorsNameLineAndColumn) {
  EXPECT_THAT(ReadRefusal("malloc a 8\nmalloc a 9\n"),
              HasSubstr("t:2:8: id 'a' is alive since line 1"));
  EXPECT_THAT(ReadRefusal("malloc a 8\nfree b\n"),
              HasSubstr("t:2:6: id 'b' is not alive here: no malloc"));
  EXPECT_THAT(ReadRefusal("malloc a 8\nfree a\nfree a\n"),
              HasSubstr("t:3:6: id 'a' is not alive here: it was freed"));
  EXPECT_THAT(ReadRefusal("malloc a -8\n"), HasSubstr("t:1:10: size -8"));
  EXPECT_THAT(ReadRefusal("malloc a 1e3\n"), HasSubstr("t:1:10: size '1e3'"));
  EXPECT_THAT(ReadRefusal("malloc a\n"),
              HasSubstr("t:1: 'malloc a' is neither"));
  EXPECT_THAT(ReadRefusal("malloc a 8\nrealloc a 9\n"),
              HasSubstr("t:2: 'realloc a 9' is neither"));
}

TEST(RequestLog, IsReadLikeTheCsvOfTheSameTrace) {
  const NamedTrace made =
      GenerateIteration(*FindIteration("gpt-7b-tp1-cp1-chunks1-mb2"), 1);
  const auto log = Read(ToRequestLog(made.trace));
  const auto csv = Read(ToCsv(made.trace));
  ASSERT_THAT(log, IsOk());
  ASSERT_THAT(csv, IsOk());
  ASSERT_EQ(log->names.size(), csv->names.size());
  for (size_t k = 0; k < log->names.size(); ++k) {
    EXPECT_EQ(log->trace.buffers[k].size, csv->trace.buffers[k].size);
    EXPECT_EQ(log->trace.buffers[k].lower, csv->trace.buffers[k].lower + 1);
  }
}

// ---- PyTorch ---------------------------------------------------------------

std::string Memory(const char* ts, int64_t address, int64_t bytes, int type = 1,
                   int device = 0) {
  return fmt::format(
      R"({{"ph":"i","cat":"cpu_instant_event","s":"t","name":"[memory]",)"
      R"("pid":1,"tid":2,"ts":{},"args":{{"Total Reserved":0,"Addr":{},)"
      R"("Device Id":{},"Device Type":{},"Bytes":{},"Ev Idx":1}}}})",
      ts, address, device, type, bytes);
}

std::string Chrome(const std::vector<std::string>& events) {
  return fmt::format(
      R"({{"schemaVersion":1,"deviceProperties":[{{"id":0,"name":"[memory]"}}],)"
      R"("traceEvents":[{{"ph":"X","name":"aten::mm","ts":1,"args":)"
      R"({{"Addr":1,"Bytes":5,"dims":[[1,2],{{"Bytes":3}}]}}}},{}],)"
      R"("traceName":"x"}})",
      fmt::join(events, ","));
}

TEST(PyTorchTrace, RequestsArePairedByAddressInTheOrderOfTheirTimes) {
  const auto named = Read(Chrome(
      {Memory("30", 7, -512), Memory("10", 7, 512), Memory("20", 9, 1024)}));
  ASSERT_THAT(named, IsOk());
  EXPECT_THAT(Rows(*named), ElementsAre("0 [1, 3) 512", "1 [2, 4) 1024"));
  EXPECT_EQ(named->source, "PyTorch trace, cuda:0");
  EXPECT_EQ(named->trace.alignment, Bytes(512));
}

TEST(PyTorchTrace, TimesBelowZeroKeepTheirOrder) {
  const auto named =
      Read(Chrome({Memory("-0.25", 7, -512), Memory("-2.75", 7, 512),
                   Memory("-2.5", 9, 1024)}));
  ASSERT_THAT(named, IsOk());
  EXPECT_THAT(Rows(*named), ElementsAre("0 [1, 3) 512", "1 [2, 4) 1024"));
}

TEST(PyTorchTrace, EventsAtOneTimeKeepTheFilesOrder) {
  const auto named =
      Read(Chrome({Memory("5", 7, 512), Memory("5", 7, -512),
                   Memory("5.0", 7, 2048), Memory("5", 7, -2048)}));
  ASSERT_THAT(named, IsOk());
  EXPECT_THAT(Rows(*named), ElementsAre("0 [1, 2) 512", "1 [3, 4) 2048"));
}

TEST(PyTorchTrace, TimesSince1970AreExactToTheNanosecond) {
  const auto named = Read(Chrome({Memory("1700000000000000.002", 7, -512),
                                  Memory("1700000000000000.001", 7, 512)}));
  ASSERT_THAT(named, IsOk());
  EXPECT_THAT(Rows(*named), ElementsAre("0 [1, 2) 512"));
}

TEST(PyTorchTrace, NumbersAreReadInEveryNotationOfJson) {
  // The times 20 and 30.0005 us are in exponent notation, and a free has its
  // address in hexadecimal.
  std::string free = Memory("30", 31, -512);
  free.replace(free.find("\"Addr\":31"), 9, R"("Addr":"0x1f")");
  const auto named =
      Read(Chrome({free, Memory("2e1", 31, 512), Memory("3.00005E1", 9, 64),
                   Memory("30.001", 8, 128)}));
  ASSERT_THAT(named, IsOk());
  EXPECT_THAT(Rows(*named),
              ElementsAre("0 [1, 2) 512", "1 [3, 5) 64", "2 [4, 5) 128"));
  EXPECT_THAT(ReadRefusal(Chrome({Memory("1e16", 7, 512)})),
              HasSubstr("ts is '1e16'"));
}

TEST(PyTorchTrace, AFieldThatIsNoNumberIsNamed) {
  for (const char* const value : {"null", "true"}) {
    std::string event = Memory("1", 7, 512);
    event.replace(event.find("\"Addr\":7"), 8,
                  fmt::format("\"Addr\":{}", value));
    EXPECT_THAT(ReadRefusal(Chrome({event})), HasSubstr("args.Addr is ''"));
  }
}

TEST(PyTorchTrace, MoreBytesThanATraceMayHaveAreRefused) {
  const int64_t half = int64_t{1} << 59;
  EXPECT_THAT(Read(Chrome({Memory("1", 7, half)})), IsOk());
  EXPECT_THAT(ReadRefusal(Chrome({Memory("1", 7, half), Memory("2", 8, half),
                                  Memory("3", 9, 512)})),
              HasSubstr("traceEvents[3]: size = 512"));
}

TEST(PyTorchTrace, ABufferFreedWithoutAMallocLivesFromTheStart) {
  const auto named = Read(Chrome({Memory("1", 3, 1), Memory("2", 7, -512)}));
  ASSERT_THAT(named, IsOk());
  EXPECT_THAT(Rows(*named), ElementsAre("0 [0, 2) 512", "1 [1, 3) 1"));
}

TEST(PyTorchTrace, AnAddressThatIsAllocatedAgainCountsAsFreed) {
  const auto named = Read(Chrome({Memory("1", 7, 512), Memory("2", 7, 64)}));
  ASSERT_THAT(named, IsOk());
  EXPECT_THAT(Rows(*named), ElementsAre("0 [1, 2) 512", "1 [2, 3) 64"));
  EXPECT_THAT(named->notes, ElementsAre(HasSubstr("1 buffers have no free")));
}

TEST(PyTorchTrace, OneOfSeveralDevicesIsChosen) {
  const std::string text =
      Chrome({Memory("1", 7, 512), Memory("2", 7, 64, 0, -1),
              Memory("3", 8, 128, 1, 1)});
  EXPECT_THAT(ReadRefusal(text), HasSubstr("3 devices (cpu, cuda:0, cuda:1): "
                                           "choose one with --device"));
  EXPECT_THAT(ReadRefusal(text, {.device = "cuda:2"}),
              HasSubstr("device 'cuda:2', only of cpu, cuda:0, cuda:1"));
  const auto named = Read(text, {.device = "cuda:1"});
  ASSERT_THAT(named, IsOk());
  EXPECT_THAT(Rows(*named), ElementsAre("0 [1, 2) 128"));
}

TEST(PyTorchTrace, ABareListOfEventsIsATrace) {
  const auto named = Read("[" + Memory("1", 7, 512) + "]");
  ASSERT_THAT(named, IsOk());
  EXPECT_THAT(Rows(*named), ElementsAre("0 [1, 2) 512"));
}

TEST(PyTorchTrace, MissingAndDamagedFieldsAreNamed) {
  EXPECT_THAT(ReadRefusal(Chrome({R"({"name":"x"})"})),
              HasSubstr("profile_memory=True"));
  EXPECT_THAT(ReadRefusal(R"({"displayTimeUnit":"ms"})"),
              HasSubstr("has no list 'traceEvents'"));
  EXPECT_THAT(
      ReadRefusal(R"({"traceEvents":[{"name":"[memory]","ts":1,"args":{}}]})"),
      HasSubstr("traceEvents[0], a [memory] event: args.Addr is missing"));
  EXPECT_THAT(ReadRefusal(Chrome({Memory("\"soon\"", 7, 512)})),
              HasSubstr("traceEvents[1], a [memory] event: ts is 'soon'"));
  // The negation of the least int64 overflows.
  for (const char* const far :
       {"-9223372036854775808", "9223372036854775807"}) {
    EXPECT_THAT(ReadRefusal(Chrome({Memory(far, 7, 512)})),
                HasSubstr(std::string("ts is '") + far));
  }
  EXPECT_THAT(ReadRefusal(Chrome({Memory("1", 7, 512), Memory("2", 7, -64)})),
              HasSubstr("frees 64 bytes at address 0x7 where 512"));
  const std::string whole = Chrome({Memory("1", 7, 512)});
  EXPECT_THAT(ReadRefusal(whole.substr(0, whole.size() / 2)),
              HasSubstr("is no JSON"));
}

// PyTorch writes names that JSON forbids. Names do not matter to a plan.
TEST(PyTorchTrace, NamesThatJsonForbidsAreAccepted) {
  for (const char* name :
       {R"(C:\code\model.py)", "a\tb", "a\x01z", "Tr\xe9\xfftensor",
        R"(\ud800)", R"(\u12)", R"(a\"b)", R"(a\\)"}) {
    const auto named =
        Read(Chrome({Memory("1", 7, 512),
                     fmt::format(R"({{"ph":"X","name":"{}","ts":1.5}})", name),
                     Memory("2", 7, -512)}));
    ASSERT_THAT(named, IsOk()) << name;
    EXPECT_THAT(Rows(*named), ElementsAre("0 [1, 2) 512"));
  }
}

TEST(PyTorchTrace, InvalidJsonIsNamedAndOnlyATruncatedFileIsCalledCutOff) {
  EXPECT_THAT(ReadRefusal(R"({"traceEvents":[{"name":"x","ts":NaN}]})"),
              HasSubstr("N' cannot stand there"));
  EXPECT_THAT(ReadRefusal(R"({"traceEvents":[{"name":"x)"),
              HasSubstr("was it cut off"));
  EXPECT_THAT(ReadRefusal(R"({"traceEvents":[{"name":"x")"),
              HasSubstr("was it cut off"));
}

TEST(PyTorchTrace, TheErrorSaysIfTheHeaderAskedForMemoryEvents) {
  EXPECT_THAT(
      ReadRefusal(R"({"profile_memory":1,"traceEvents":[{"name":"x"}]})"),
      HasSubstr("has no [memory] events, which its header asked for "
                "(profile_memory)"));
  EXPECT_THAT(
      ReadRefusal(R"({"traceEvents":[{"name":"x"}],"profile_memory":1})"),
      HasSubstr("its header asked for"));
  EXPECT_THAT(
      ReadRefusal(R"({"profile_memory":0,"traceEvents":[{"name":"x"}]})"),
      HasSubstr("record with torch.profiler"));
}

std::string WithTotal(std::string event, int64_t total) {
  return event.replace(event.find("\"Total Reserved\""), 0,
                       fmt::format("\"Total Allocated\":{},", total));
}

// A trace may begin after the weights were allocated. The peak must include
// them.
TEST(PyTorchTrace, MemoryAllocatedBeforeTheFirstEventIsCounted) {
  // 1,536 bytes are allocated before; 512 of them are freed in the trace.
  const auto named = Read(Chrome({WithTotal(Memory("2", 9, 64), 1600),
                                  WithTotal(Memory("3", 7, -512), 1088),
                                  WithTotal(Memory("1", 8, 0), 1536)}));
  ASSERT_THAT(named, IsOk());
  EXPECT_THAT(Rows(*named),
              ElementsAre("0 [0, 2) 512", "1 [0, 3) 1024", "2 [1, 3) 64"));
  EXPECT_THAT(named->notes,
              ElementsAre(HasSubstr("1024 bytes were allocated before the "
                                    "first event")));
  // No buffer is added if all earlier memory is freed, or if there is none.
  const auto freed = Read(Chrome({WithTotal(Memory("1", 7, -512), 0)}));
  ASSERT_THAT(freed, IsOk());
  EXPECT_THAT(Rows(*freed), ElementsAre("0 [0, 1) 512"));
  const auto nothing = Read(Chrome({WithTotal(Memory("1", 7, 512), 512)}));
  ASSERT_THAT(nothing, IsOk());
  EXPECT_THAT(Rows(*nothing), ElementsAre("0 [1, 2) 512"));
  // Each device has its own earlier memory.
  const auto second = Read(Chrome({WithTotal(Memory("1", 7, 512), 512),
                                   WithTotal(Memory("2", 7, 512, 1, 1), 4608)}),
                           {.device = "cuda:1"});
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT(Rows(*second), ElementsAre("0 [0, 2) 4096", "1 [1, 2) 512"));
}

// ---- What our own profiler writes ------------------------------------------

plan::RankProfile Profile(uint64_t rank) {
  plan::RankProfile profile;
  profile.rank = Rank(rank);
  profile.kinds[0].layers = 1;
  for (const char* name : {"qkv.full", "loss.full"}) {
    plan::SegmentKind segment{.name = name};
    segment.trace = {{{0, 0, 2, Bytes(100)}, {1, 1, 3, Bytes(50)}}, 3};
    profile.segments.push_back(segment);
  }
  return profile;
}

TEST(ProfileTrace, SegmentsFollowEachOther) {
  const auto named = Read(plan::Encode(Profile(0)));
  ASSERT_THAT(named, IsOk());
  EXPECT_THAT(Rows(*named),
              ElementsAre("qkv.full/0 [0, 2) 100", "qkv.full/1 [1, 3) 50",
                          "loss.full/0 [3, 5) 100", "loss.full/1 [4, 6) 50"));
}

TEST(ProfileTrace, OneOfSeveralRanksIsChosen) {
  const std::string text =
      plan::Encode(std::vector<plan::RankProfile>{Profile(0), Profile(3)});
  EXPECT_THAT(ReadRefusal(text), HasSubstr("2 ranks (0, 3): choose one with"));
  EXPECT_THAT(ReadRefusal(text, {.device = "1"}),
              HasSubstr("rank '1', only of 0"));
  const auto named = Read(text, {.device = "3"});
  ASSERT_THAT(named, IsOk());
  EXPECT_EQ(named->source, "profile of rank 3");
}

TEST(ProfileTrace, ARequestToTheWorkerIsReadAsItsProfiles) {
  plan::PlanRequest request;
  request.profiles = {Profile(0), Profile(3)};
  const auto named = Read(plan::Encode(request), {.device = "3"});
  ASSERT_THAT(named, IsOk());
  EXPECT_EQ(named->source, "profile of rank 3");
}

TEST(ProfileTrace, SegmentsThatTogetherExceedATracesLimitsAreRefused) {
  plan::RankProfile profile = Profile(0);
  profile.segments[1].trace.end = plan::kMaxTime;
  EXPECT_THAT(ReadRefusal(plan::Encode(profile)), HasSubstr("'loss.full'"));
  profile.segments[1].trace.end = plan::kMaxTime - 3;
  EXPECT_THAT(Read(plan::Encode(profile)), IsOk());
  profile.segments[1].trace.buffers[0].size = Bytes(int64_t{1} << 60);
  EXPECT_THAT(ReadRefusal(plan::Encode(profile)),
              HasSubstr(fmt::to_string(int64_t{1} << 60)));
}

TEST(ProfileTrace, ADamagedProfileIsRefusedAndItsFieldIsNamed) {
  std::string text = plan::Encode(Profile(0));
  text.replace(text.find("\"layers\":1"), 10, "\"layers\":0");
  EXPECT_THAT(ReadRefusal(text), HasSubstr("layers"));
}

TEST(TraceBuilder, HoldsAsManyBuffersAsAPlan) {
  TraceBuilder builder(Bytes(1));
  for (size_t i = 0; i < plan::kMaxBuffers; ++i) {
    ASSERT_TRUE(builder.Add("", 0, 1, 1).ok());
  }
  EXPECT_EQ(builder.Add("", 0, 1, 1).code(),
            absl::StatusCode::kInvalidArgument);
}

// ---- All formats -----------------------------------------------------------

TEST(ReadTrace, InputThatIsNoTraceIsRefused) {
  EXPECT_THAT(ReadRefusal(""), HasSubstr("t: is empty"));
  EXPECT_THAT(ReadRefusal("\n \n"), HasSubstr("t: is empty"));
  EXPECT_THAT(ReadRefusal("hello\n"), HasSubstr("begins with 'hello'"));
  EXPECT_THAT(ReadRefusal("\x80\x04\x95"), HasSubstr("begins with"));
  EXPECT_THAT(ReadRefusal("\x1f\x8b\x08"), HasSubstr("zcat FILE | sluicectl"));
  EXPECT_THAT(ReadRefusal(std::string(100000, ',')), HasSubstr("65536 bytes"));
  EXPECT_THAT(ReadRefusal(std::string("id\0,lower,upper,size\n", 21)),
              HasSubstr("'id' is missing"));
}

TEST(ReadTrace, AReadErrorIsReportedAndNoPartialTraceIsReturned) {
  // Yields a complete row, then fails like std::filebuf.
  class Failing : public std::stringbuf {
   public:
    Failing() : std::stringbuf("id,lower,upper,size\n1,0,2,8\n") {}

   protected:
    std::streamsize xsgetn(char* to, std::streamsize n) override {
      const std::streamsize got = std::stringbuf::xsgetn(to, n);
      if (got == 0) throw std::ios_base::failure("reading");
      return got;
    }
  };
  Failing failing;
  std::istream in(&failing);
  const auto named = ReadTrace(in, {.file = "t"});
  ASSERT_FALSE(named.ok());
  EXPECT_EQ(std::string(named.status().message()), "t: cannot be read");
}

TEST(ReadTrace, TheFormatCanBeGiven) {
  EXPECT_THAT(ReadRefusal("malloc 1 2\n", {.format = TraceFormat::kMiniMalloc}),
              HasSubstr("column 'id' is missing"));
  for (const char* name : {"minimalloc", "log", "pytorch", "profile"}) {
    ASSERT_TRUE(TraceFormatOf(name).has_value());
    EXPECT_EQ(NameOf(*TraceFormatOf(name)), name);
  }
  EXPECT_FALSE(TraceFormatOf("csv2").has_value());
}

TEST(ReadTrace, AnAlignmentMustBeAPowerOfTwo) {
  const std::string text = "id,lower,upper,size\n1,0,2,8\n";
  EXPECT_THAT(ReadRefusal(text, {.alignment = Bytes(3)}), HasSubstr("of 3"));
  EXPECT_THAT(ReadRefusal(text, {.alignment = Bytes(-4)}), HasSubstr("of -4"));
  EXPECT_THAT(ReadRefusal(text, {.alignment = Bytes(int64_t{1} << 40)}),
              HasSubstr("power of two"));
  const auto named = Read(text, {.alignment = Bytes(256)});
  ASSERT_THAT(named, IsOk());
  EXPECT_EQ(named->trace.alignment, Bytes(256));
  EXPECT_EQ(named->trace.buffers[0].size, Bytes(8));  // not rounded
}

}  // namespace
}  // namespace sluice::planner

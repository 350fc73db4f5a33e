#include "client/train/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::train {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const TensorInfo kA{"a", TensorType::kF32, {2, 2}};
const TensorInfo kB{"b", TensorType::kBF16, {3}};

class SafetensorsTest : public ::testing::Test {
 protected:
  std::string WriteTwo() {
    const std::string path = dir_.File("two.safetensors");
    auto writer = SafetensorsWriter::Create(path, {kA, kB});
    SLUICE_CHECK_OK(writer.status());
    const float a[] = {1, 2, 3, 4};
    const uint16_t b[] = {5, 6, 7};
    SLUICE_CHECK_OK((*writer)->Append(a, sizeof(a)));
    SLUICE_CHECK_OK((*writer)->Append(b, sizeof(b)));
    SLUICE_CHECK_OK((*writer)->Close());
    return path;
  }
  std::string WriteRaw(const std::string& header, const std::string& data) {
    const std::string path = dir_.File("raw.safetensors");
    const uint64_t size = header.size();
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &size, 8);
    std::ofstream(path, std::ios::binary) << bytes << header << data;
    return path;
  }
  sluice::testing::TempDir dir_;
};

TEST_F(SafetensorsTest, ReadsBackWhatItWrote) {
  SLUICE_ASSERT_OK_AND_ASSIGN(auto reader, SafetensorsReader::Open(WriteTwo()));
  EXPECT_THAT(reader->Expect(kA), IsOk());
  EXPECT_THAT(reader->Expect(kB), IsOk());
  float middle[2];
  ASSERT_THAT(reader->Read("a", 4, middle, sizeof(middle)), IsOk());
  EXPECT_THAT(middle, ElementsAre(2, 3));
  uint16_t last[1];
  ASSERT_THAT(reader->Read("b", 4, last, 2), IsOk());
  EXPECT_THAT(last, ElementsAre(7));
  uint8_t byte = 0;
  ASSERT_THAT(reader->Read("b", 2, &byte, 1), IsOk());
  EXPECT_EQ(byte, 6);
}

TEST_F(SafetensorsTest, ATensorWithoutElementsIsRead) {
  SLUICE_ASSERT_OK_AND_ASSIGN(
      auto reader,
      SafetensorsReader::Open(
          WriteRaw(R"({"a":{"dtype":"F32","shape":[2,0],"data_offsets":[0,0]},)"
                   R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                   "1234")));
  EXPECT_THAT(reader->Expect({"a", TensorType::kF32, {2, 0}}), IsOk());
}

// Checks the bytes on which other readers of the format rely.
TEST_F(SafetensorsTest, TheFileHasTheFormatsLayout) {
  std::ifstream in(WriteTwo(), std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  const std::string bytes = text.str();
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), 8);
  EXPECT_EQ(size % 8, 0u);
  EXPECT_EQ(bytes.size(), 8 + size + 16 + 6);
  EXPECT_THAT(bytes.substr(8, size),
              AllOf(HasSubstr(R"("a":{"dtype":"F32","shape":[2,2],)"
                              R"("data_offsets":[0,16]})"),
                    HasSubstr(R"("data_offsets":[16,22])")));
}

TEST_F(SafetensorsTest, AWrongShapeErrorNamesBothShapes) {
  SLUICE_ASSERT_OK_AND_ASSIGN(auto reader, SafetensorsReader::Open(WriteTwo()));
  EXPECT_THAT(reader->Expect({"a", TensorType::kF32, {4}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("[2, 2]"), HasSubstr("[4]"))));
  EXPECT_THAT(reader->Expect({"c", TensorType::kF32, {4}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'c'")));
}

TEST_F(SafetensorsTest, ReadsOutsideATensorAreRefused) {
  SLUICE_ASSERT_OK_AND_ASSIGN(auto reader, SafetensorsReader::Open(WriteTwo()));
  float out[8];
  EXPECT_THAT(reader->Read("a", 12, out, 8),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(reader->Read("a", -4, out, 4),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(SafetensorsTest, MissingBytesAreFoundAtClose) {
  SLUICE_ASSERT_OK_AND_ASSIGN(auto writer,
                              SafetensorsWriter::Create(dir_.File("x"), {kA}));
  EXPECT_THAT(writer->Close(), StatusIs(absl::StatusCode::kInternal));
}

TEST_F(SafetensorsTest, ATruncatedFileIsRefused) {
  const std::string path = WriteTwo();
  const auto whole = std::filesystem::file_size(path);
  for (const uintmax_t size :
       {whole - 1, uintmax_t{40}, uintmax_t{7}, uintmax_t{0}}) {
    std::filesystem::resize_file(path, size);
    EXPECT_THAT(SafetensorsReader::Open(path),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path)))
        << size;
  }
}

TEST_F(SafetensorsTest, AnInconsistentHeaderIsRefused) {
  const std::string data(16, 'x');
  for (const char* header :
       {"[]", "not json", R"({"a":7})",
        R"({"a":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}})",
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,16]}})",
        R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}})",
        R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}})",
        R"({"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}})",
        R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4],)"
        R"("data_offsets":[0,16]}})"}) {
    EXPECT_THAT(SafetensorsReader::Open(WriteRaw(header, data)),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << header;
  }
}

}  // namespace
}  // namespace sluice::train

#include "tests/proto/session_text.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>

#include <fstream>

#include "gtest/gtest.h"
#include "tests/support/places.h"

namespace sluice::testing {

std::unique_ptr<google::protobuf::Message> Described(
    const google::protobuf::MessageLite& message) {
  static google::protobuf::DescriptorPool& pool = []() -> auto& {
    auto* made = new google::protobuf::DescriptorPool;
    google::protobuf::FileDescriptorSet files;
    std::ifstream file(InBuild("tests/proto/session.desc"));
    EXPECT_TRUE(files.ParseFromIstream(&file));
    for (const auto& each : files.file()) made->BuildFile(each);
    return *made;
  }
  ();
  static auto& factory = *new google::protobuf::DynamicMessageFactory(&pool);
  std::unique_ptr<google::protobuf::Message> described(
      factory.GetPrototype(pool.FindMessageTypeByName(message.GetTypeName()))
          ->New());
  EXPECT_TRUE(described->ParseFromString(message.SerializeAsString()));
  return described;
}

}  // namespace sluice::testing

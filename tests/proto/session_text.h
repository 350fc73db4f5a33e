// What session.proto says of a message, whose class has no descriptors.
#pragma once

#include <google/protobuf/message.h>

#include <memory>

namespace sluice::testing {

// `message` with descriptors: it lists its fields and prints itself.
std::unique_ptr<google::protobuf::Message> Described(
    const google::protobuf::MessageLite& message);

}  // namespace sluice::testing

// What session.proto says of a message that has no descriptors of its own.
#pragma once

#include <google/protobuf/message.h>

#include <memory>

namespace sluice::testing {

// `message` with descriptors: it lists its fields and prints itself.
std::unique_ptr<google::protobuf::Message> Described(
    const google::protobuf::MessageLite& message);

}  // namespace sluice::testing

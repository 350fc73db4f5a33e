// The text of session.proto for a message of a class without descriptors.
#pragma once

#include <google/protobuf/message.h>

#include <memory>

namespace sluice::testing {

// Returns `message` with descriptors, which can list its fields and print
// itself.
std::unique_ptr<google::protobuf::Message> Described(
    const google::protobuf::MessageLite& message);

}  // namespace sluice::testing

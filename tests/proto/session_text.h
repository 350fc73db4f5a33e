// Descriptors for the messages of session.proto. Their protobuf-lite classes
// have none.
#pragma once

#include <google/protobuf/message.h>

#include <memory>

namespace sluice::testing {

// Returns a copy of `message` that can list its fields and print itself.
std::unique_ptr<google::protobuf::Message> Described(
    const google::protobuf::MessageLite& message);

}  // namespace sluice::testing

// Encodes plain data by numbered fields, in protobuf's wire format. One list of
// fields per type serves for writing and reading:
//
//   void Fields(auto& ar, Is<Slice> auto& slice) {
//     ar(1, slice.id);
//     ar(2, slice.size);
//   }
//
// Fields are in the order of their numbers. A number is never reused for
// another field: a reader skips fields that it does not know, and a missing
// field keeps its default, so that one version can read what another wrote.
//
// No list is needed for numbers, enums, ids, sizes, times, strings, optionals,
// variants, pairs and containers of these. A shared object is written once, and
// its number (`Objects`) wherever it is used.
//
// Thread safety: values.
#pragma once

#include "daemon/state/field_reader.h"
#include "daemon/state/field_writer.h"

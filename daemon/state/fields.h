// Plain data as bytes, by numbered fields: protobuf's wire format, written and
// read by one list of fields per type.
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
// These need no list: numbers, enums, ids, sizes, times, strings, optionals,
// variants, pairs and containers of these. A shared object is written as its
// number (`Objects`), and once as itself.
//
// Thread safety: values.
#pragma once

#include "daemon/state/field_reader.h"
#include "daemon/state/field_writer.h"

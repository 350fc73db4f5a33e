// Plain data as bytes, by numbered fields: protobuf's wire format, written and
// read by one list of fields per type.
//
//   void Fields(auto& ar, Is<Slice> auto& slice) {
//     ar(1, slice.id);
//     ar(2, slice.size);
//   }
//
// Fields come in the order of their numbers. A number is never used again for
// something else: a reader skips those it does not know, and what is not there
// stays as it was made, so that a version can read what another one wrote.
//
// Understood without a list: numbers, enums, ids, sizes, times, strings,
// optionals, variants, pairs and containers of these. A shared object is
// written as its number (`Objects`), and once as itself.
//
// Thread safety: values.
#pragma once

#include "daemon/state/field_reader.h"
#include "daemon/state/field_writer.h"

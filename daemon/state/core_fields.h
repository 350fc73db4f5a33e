// The fields of policy's saved state (daemon/core/state.h), by number. A number
// is never reused for another field (fields.h). This file has the fields of
// rows, and of the state outside of tables (RowKind).
#pragma once

#include "daemon/core/state.h"
#include "daemon/state/fields.h"
#include "daemon/state/memory_fields.h"
#include "daemon/state/plan_fields.h"
#include "daemon/state/session_fields.h"

namespace sluice::daemon {

void Fields(auto& ar, Is<LooseState> auto& loose) {
  ar(1, loose.next_extent);
  ar(2, loose.next_lease);
  ar(3, loose.next_principal);
  ar(4, loose.next_round);
  ar(5, loose.next_plan);
  ar(6, loose.next_idle_order);
  ar(7, loose.ask_again_at);
  ar(8, loose.asked_last);
  ar(9, loose.outside);
  ar(10, loose.waiting_leases);
  ar(11, loose.next_joint);
  ar(12, loose.last_session);
  ar(13, loose.next_place);
  ar(14, loose.gpus);
}
void Fields(auto& ar, Is<ExtentRow> auto& row) {
  ar(1, row.pool);
  ar(2, row.extent);
}

}  // namespace sluice::daemon

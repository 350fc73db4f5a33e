// Memory that is held outside leases (held_outside.h). Combines the reports of
// the device and of ranks, and computes each rank's part.
// Thread safety: one thread (core.h).
#pragma once

#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/journal.h"
#include "daemon/core/ledger.h"
#include "daemon/core/pool/held_outside.h"
#include "daemon/core/session_table.h"

namespace sluice::daemon {

class OutsideMemory {
 public:
  // All arguments must outlive this object.
  OutsideMemory(const NodeConfig& config, SessionTable& sessions,
                Ledger& ledger, Journal& journal)
      : config_(config),
        sessions_(sessions),
        ledger_(ledger),
        journal_(journal) {}

  // Handles the device's report. Returns how much host memory became free.
  Bytes Known(HeldOutside said, absl::Time now);
  // Handles a rank's report, and sets its Session::outside.
  void Told(Session& session, const GpuUseRequest& use, absl::Time now);

 private:
  // Sets `held`, and logs each pool in which outside memory appears or ends.
  Bytes Set(HeldOutside held, absl::Time now);

  const NodeConfig& config_;
  SessionTable& sessions_;
  Ledger& ledger_;
  Journal& journal_;
};

}  // namespace sluice::daemon

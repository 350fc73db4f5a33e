// Memory that is held outside leases (held_outside.h): what the device says of
// it, what ranks tell, and which rank has what of it.
//
// Thread safety: none needed; one thread (see core.h).
#pragma once

#include "absl/time/time.h"
#include "daemon/core/journal.h"
#include "daemon/core/ledger.h"
#include "daemon/core/pool/held_outside.h"
#include "daemon/core/requests.h"
#include "daemon/core/session_table.h"

namespace sluice::daemon {

class OutsideMemory {
 public:
  // All outlive it.
  OutsideMemory(const NodeConfig& config, SessionTable& sessions,
                Ledger& ledger, Journal& journal)
      : config_(config),
        sessions_(sessions),
        ledger_(ledger),
        journal_(journal) {}

  // The device said it. Returns the host memory that came back.
  Bytes Known(HeldOutside said, absl::Time now);
  // The rank says how much of its GPU is in use.
  void Told(Session& session, const GpuUseRequest& use, absl::Time now);

 private:
  // Puts it in force, and logs where it begins or ends.
  Bytes Set(HeldOutside held, absl::Time now);

  const NodeConfig& config_;
  SessionTable& sessions_;
  Ledger& ledger_;
  Journal& journal_;
};

}  // namespace sluice::daemon

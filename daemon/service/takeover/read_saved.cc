#include "daemon/service/takeover/read_saved.h"

#include <fmt/format.h>

#include <utility>

#include "daemon/state/core_rows.h"
#include "proto/base/status.h"
#include "proto/wire.h"

namespace sluice::daemon {

absl::StatusOr<CoreState> ReadSaved(const StateFile::Contents& contents,
                                    CoreState fresh) {
  SLUICE_ASSIGN_OR_RETURN(CoreState saved,
                          ReadCore(contents, std::move(fresh)));
  for (const auto& [id, session] : saved.sessions) {
    const uint32_t speaks = session.hello.protocol;
    if (!session.is_rank() || (speaks >= wire::kProtocols.oldest &&
                               speaks <= wire::kProtocols.newest)) {
      continue;
    }
    return absl::UnimplementedError(fmt::format(
        "session {} speaks protocol {}, this daemon {} to {}", id.value(),
        speaks, wire::kProtocols.oldest, wire::kProtocols.newest));
  }
  return saved;
}

}  // namespace sluice::daemon

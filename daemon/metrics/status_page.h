// The status page: one self-contained HTML document that asks /status.json
// every two seconds.
#pragma once

#include <string_view>

namespace sluice::daemon {

std::string_view StatusPage();

}  // namespace sluice::daemon

// What is in a bundle, what is not, and why: for the bundle and for the screen.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "client/ctl/bundle/item.h"

namespace sluice::ctl {

// contents.txt, which is in each bundle.
std::string RenderContents(const std::vector<Item>& items);

// One line: {"file", "bytes", "contents": [{"name", "what"}],
// "left_out": [{"name", "what", "why"}]}.
std::string RenderBundleJson(const std::string& file, size_t bytes,
                             const std::vector<Item>& items);

}  // namespace sluice::ctl

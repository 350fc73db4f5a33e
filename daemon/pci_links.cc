#include "daemon/pci_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "proto/base/ids.h"

namespace sluice::daemon {
namespace {

using bandwidth::LinkKind;

constexpr const char* kBus = "/sys/bus/pci/devices/";
constexpr int kMostLanes = 32;  // of the standard; more means "not known"

bool IsHex(const std::string& text, size_t least, size_t most) {
  return text.size() >= least && text.size() <= most &&
         std::ranges::all_of(
             text, [](unsigned char c) { return std::isxdigit(c) != 0; });
}

// "0000:3a": a domain and a bus. Domains behind a volume manager have more
// digits than four.
bool IsBus(const std::string& name) {
  const size_t colon = name.find(':');
  return colon != std::string::npos && IsHex(name.substr(0, colon), 4, 8) &&
         IsHex(name.substr(colon + 1), 2, 2);
}

// "0000:3b:00.0".
bool IsAddress(const std::string& name) {
  const size_t colon = name.rfind(':');
  if (colon == std::string::npos || !IsBus(name.substr(0, colon))) return false;
  const std::string slot = name.substr(colon + 1);
  return slot.size() == 4 && IsHex(slot.substr(0, 2), 2, 2) && slot[2] == '.' &&
         slot[3] >= '0' && slot[3] <= '7';
}

// The number that a file begins with ("16.0 GT/s PCIe", "16"); none: it is not
// there, or begins otherwise ("Unknown").
std::optional<double> NumberIn(const std::filesystem::path& file) {
  std::ifstream in(file);
  double number = 0;
  if (!(in >> number) || !std::isfinite(number)) return std::nullopt;
  return number;
}

// The first of the files that tells one that may be; 0: none does.
double FirstIn(const std::filesystem::path& folder,
               std::initializer_list<const char*> files, double most) {
  for (const char* file : files) {
    const auto number = NumberIn(folder / file);
    if (number && *number > 0 && *number <= most) return *number;
  }
  return 0;
}

// The lower of two numbers of which either may be 0, not known.
double Lower(double a, double b) {
  return a > 0 && b > 0 ? std::min(a, b) : std::max(a, b);
}

// Where a device really is: from the root complex down to it.
struct Chain {
  std::string root;  // "0000:3a"; empty: not known
  std::vector<std::filesystem::path> devices;
};

Chain ChainOf(const std::string& address, const std::string& root) {
  std::error_code error;
  const std::filesystem::path device =
      std::filesystem::canonical(root + kBus + address, error);
  Chain chain;
  if (error || device.filename() != address) return chain;
  std::filesystem::path at = device;
  for (; IsAddress(at.filename()); at = at.parent_path()) {
    chain.devices.insert(chain.devices.begin(), at);
  }
  const std::string above = at.filename();
  if (above.starts_with("pci") && IsBus(above.substr(3))) {
    chain.root = above.substr(3);
  }
  return chain;
}

// The link whose lower end is `lower`; `upper`: the port at its other end.
PciLink PciLinkOf(const std::filesystem::path& lower,
                  const std::optional<std::filesystem::path>& upper) {
  constexpr double kFastest = 1000;
  PciLink made;
  made.link.name = "pci-" + lower.filename().string();
  made.gigatransfers =
      FirstIn(lower, {"max_link_speed", "current_link_speed"}, kFastest);
  double lanes = FirstIn(lower, {"current_link_width"}, kMostLanes);
  double most = FirstIn(lower, {"max_link_width"}, kMostLanes);
  if (upper) {
    made.gigatransfers = Lower(
        made.gigatransfers,
        FirstIn(*upper, {"max_link_speed", "current_link_speed"}, kFastest));
    lanes = Lower(lanes, FirstIn(*upper, {"current_link_width"}, kMostLanes));
    most = Lower(most, FirstIn(*upper, {"max_link_width"}, kMostLanes));
  }
  made.lanes = static_cast<int>(lanes > 0 ? lanes : most);
  made.most_lanes = static_cast<int>(most);
  const double rated = RatedPcieSpeed(made.gigatransfers, made.lanes);
  made.link.h2d = made.link.d2h = rated;
  return made;
}

PciLink Named(LinkKind kind, std::string name) {
  PciLink made;
  made.link.name = std::move(name);
  made.link.kind = kind;
  return made;
}

class PciReader {
 public:
  PciTopology Read(const std::vector<std::string>& addresses,
                   const std::string& root) {
    for (const std::string& address : addresses) {
      made_.of_gpu.push_back(AddGpu(ChainOf(address, root)));
    }
    return std::move(made_);
  }

 private:
  std::optional<int> AddGpu(const Chain& chain) {
    if (chain.devices.empty()) return std::nullopt;
    // From the GPU up, until a link is known: so is what it hangs on.
    const auto gpu = std::ssize(chain.devices) - 1;
    std::optional<int> first, below;
    for (auto at = gpu; at >= 0; at -= 2) {
      std::optional<std::filesystem::path> upper;
      if (at > 0) upper = chain.devices[at - 1];
      // A bridge of the root complex itself has no link above it.
      if (!upper && at != gpu) break;
      PciLink link = PciLinkOf(chain.devices[at], upper);
      link.link.kind = at == gpu ? LinkKind::kGpu : LinkKind::kSwitch;
      if (!Hang(std::move(link), first, below)) return first;
    }
    if (!chain.root.empty() &&
        !Hang(Named(LinkKind::kRoot, "root-" + chain.root), first, below)) {
      return first;
    }
    // -1: the kernel does not know.
    const auto numa = NumberIn(chain.devices.back() / "numa_node");
    if (numa && *numa >= 0 && *numa <= kMostNumaNodes) {
      Hang(Named(LinkKind::kNuma, fmt::format("numa{}", std::lround(*numa))),
           first, below);
    }
    return first;
  }

  // Puts `link` above `below`; false: it was there already.
  bool Hang(PciLink link, std::optional<int>& first,
            std::optional<int>& below) {
    const auto at = std::ranges::find_if(made_.links, [&](const PciLink& has) {
      return has.link.name == link.link.name;
    });
    const auto index = static_cast<int>(at - made_.links.begin());
    const bool is_new = at == made_.links.end();
    if (is_new) made_.links.push_back(std::move(link));
    if (below) made_.links[*below].link.parent = index;
    if (!first) first = index;
    below = index;
    return is_new;
  }

  static constexpr double kMostNumaNodes = 1023;
  PciTopology made_;
};

}  // namespace

double RatedPcieSpeed(double gigatransfers, int lanes) {
  // Which part of the bits that are sent is packets: 8 of 10 up to 5 GT/s, 128
  // of 130 up to 32 GT/s, and at 64 GT/s 242 bytes of a flit of 256.
  double packets = 0;
  if (gigatransfers > 0) packets = 8.0 / 10;
  if (gigatransfers > 5) packets = 128.0 / 130;
  if (gigatransfers > 32) packets = 242.0 / 256;
  if (gigatransfers > 64 || lanes <= 0) return 0;
  return gigatransfers * 1e9 / 8 * packets * lanes;
}

PciTopology ReadPciTopology(const std::vector<std::string>& addresses,
                            const std::string& root) {
  return PciReader().Read(addresses, root);
}

std::string PathText(const PciTopology& topology, int link) {
  std::string text;
  for (std::optional<int> at = link; at;) {
    const PciLink& each = topology.links[*at];
    text += (text.empty() ? "" : " on ") + each.link.name;
    if (each.link.h2d > 0) {
      text += fmt::format(" ({} GT/s x{}", each.gigatransfers, each.lanes);
      if (each.lanes < each.most_lanes) {
        text += fmt::format(" of x{}", each.most_lanes);
      }
      text += fmt::format(", rated {:.1f} GB/s)", each.link.h2d / 1e9);
    }
    at = each.link.parent;
  }
  return text;
}

}  // namespace sluice::daemon

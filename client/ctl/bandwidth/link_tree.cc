#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"
#include "client/ctl/bandwidth/bandwidth.h"
#include "client/ctl/text/format.h"
#include "proto/base/simulated.h"
#include "proto/base/status.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;

// A link limits one direction if it carries less than this part of what the
// links below carry in that direction. Let S be the sum of a link's two speeds
// while both directions are busy. The link limits S if S is less than this part
// of its two speeds measured alone, and of the sum of S of the links below.
constexpr double kLimited = 0.95;

absl::Status Unreadable(const std::string& what) {
  return absl::InvalidArgumentError(
      "the daemon's status has " + what +
      ": it is of another version; upgrade sluiced or sluicectl");
}

double Sum(const MeasuredSpeeds& speeds) {
  return speeds.both_h2d + speeds.both_d2h;
}

class LimitFinder {
 public:
  explicit LimitFinder(const MeasurableNode& node)
      : links_(node.links), limits_(links_.size()) {
    for (size_t i = 0; i < links_.size(); ++i) Find(i);
  }
  const LinkLimits& of(size_t link) const { return limits_[link]; }

 private:
  // Returns the nearest links below that were measured.
  std::vector<size_t> Below(size_t link) const {
    std::vector<size_t> below;
    for (size_t i = 0; i < links_.size(); ++i) {
      if (links_[i].parent != link) continue;
      if (links_[i].measured) {
        below.push_back(i);
        continue;
      }
      for (const size_t deeper : Below(i)) below.push_back(deeper);
    }
    return below;
  }

  void Find(size_t link) {
    if (!found_.insert(link).second || !links_[link].measured) return;
    const MeasuredSpeeds& own = *links_[link].measured;
    MeasuredSpeeds rest;
    bool shared = false;  // a link below limits the sum of both directions
    for (const size_t each : Below(link)) {
      Find(each);
      const MeasuredSpeeds& theirs = *links_[each].measured;
      rest.h2d += theirs.h2d, rest.d2h += theirs.d2h;
      rest.both_h2d += theirs.both_h2d, rest.both_d2h += theirs.both_d2h;
      shared |= shared_.contains(each);
    }
    const bool lowest = rest.h2d <= 0;
    LinkLimits& limits = limits_[link];
    if (lowest || own.h2d < kLimited * rest.h2d) limits.h2d = own.h2d;
    if (lowest || own.d2h < kLimited * rest.d2h) limits.d2h = own.d2h;
    double apart = own.h2d + own.d2h;
    if (!lowest) apart = std::min(apart, Sum(rest));
    if (Sum(own) < kLimited * apart) limits.both = Sum(own);
    // If a link below limits both directions together, a limit of a single
    // direction here means nothing.
    if (shared) limits.h2d = limits.d2h = 0;
    if (shared || limits.both > 0) shared_.insert(link);
  }

  const std::vector<MeasurableLink>& links_;
  std::vector<LinkLimits> limits_;
  std::set<size_t> found_, shared_;
};

std::string Quoted(const std::string& name) { return json(name).dump(); }

// One of the limits of a link, and its names.
struct LimitNames {
  double LinkLimits::*speed;
  const char *json, *toml, *words;
};
constexpr LimitNames kLimits[] = {
    {&LinkLimits::h2d, "h2d_bytes_per_second", "h2d_bytes_per_s", "to GPU"},
    {&LinkLimits::d2h, "d2h_bytes_per_second", "d2h_bytes_per_s", "to host"},
    {&LinkLimits::both, "both_bytes_per_second", "both_bytes_per_s",
     "together"},
};

std::string LinkToml(const MeasurableLink& link, const LinkLimits& limits,
                     const std::string& parent) {
  std::string text = "{name = " + Quoted(link.name);
  for (const LimitNames& each : kLimits) {
    const double speed = limits.*each.speed;
    if (speed > 0) text += fmt::format(", {} = {:.4g}", each.toml, speed);
  }
  if (!parent.empty()) text += ", parent = " + Quoted(parent);
  return text + "}";
}

// Formats "24.00 GB/s to GPU, 25.00 GB/s to host", or "-" without limits.
std::string SetText(const LinkLimits& set) {
  std::vector<std::string> texts;
  for (const LimitNames& each : kLimits) {
    if (set.*each.speed <= 0) continue;
    texts.push_back(Speed(set.*each.speed) + " " + each.words);
  }
  return texts.empty() ? "-" : absl::StrJoin(texts, ", ");
}

LinkLimits SetOf(const json& link) {
  LinkLimits set;
  for (const LimitNames& each : kLimits) {
    const json value = link.value(each.json, json());
    if (!value.is_null()) set.*each.speed = value.get<double>();
  }
  return set;
}

json SetJson(const MeasurableLink& link) {
  json set = {{"from", link.set_from.empty() ? json() : json(link.set_from)}};
  for (const LimitNames& each : kLimits) {
    const double speed = link.set.*each.speed;
    set[each.json] = speed > 0 ? json(speed) : json();
  }
  return set;
}

absl::Status ReadParents(const json& links, MeasurableNode& node) {
  for (size_t i = 0; i < links.size(); ++i) {
    if (!links[i]["parent"].is_string()) continue;
    for (size_t other = 0; other < node.links.size(); ++other) {
      if (node.links[other].name == links[i]["parent"] && other != i) {
        node.links[i].parent = other;
      }
    }
  }
  for (const MeasurableLink& link : node.links) {
    size_t steps = 0;
    for (auto at = link.parent; at; at = node.links[*at].parent) {
      if (++steps > node.links.size()) return Unreadable("a circle of links");
    }
  }
  return absl::OkStatus();
}

void FindGpus(MeasurableNode& node) {
  std::vector<MeasurableLink>& links = node.links;
  for (size_t gpu = 0; gpu < node.gpu_links.size(); ++gpu) {
    const auto own =
        std::ranges::find(links, node.gpu_links[gpu], &MeasurableLink::name);
    if (own == links.end()) continue;
    own->gpus.push_back(gpu);
    for (auto at = own->parent; at; at = links[*at].parent) {
      links[*at].gpus.push_back(gpu);
    }
  }
  for (size_t i = 0; i < links.size(); ++i) {
    const auto measures_the_same = [&](const MeasurableLink& other) {
      return other.parent == i && other.gpus == links[i].gpus;
    };
    links[i].measurable = !links[i].gpus.empty() &&
                          std::ranges::none_of(links, measures_the_same);
  }
}

}  // namespace

absl::StatusOr<MeasurableNode> ReadLinks(const std::string& snapshot) {
  const json read = json::parse(snapshot, nullptr, /*allow_exceptions=*/false);
  if (!read.is_object() || !read.contains("links")) {
    return Unreadable("no links");
  }
  MeasurableNode node;
  try {
    node.driver = read.at("driver").get<std::string>();
    node.keeps = read.contains("measured_links");
    for (const json& gpu : read.at("gpus")) {
      node.gpu_links.push_back(gpu.at("link").get<std::string>());
      node.gpu_free.push_back(gpu.at("free_bytes").get<int64_t>());
    }
    for (const json& link : read.at("links")) {
      MeasurableLink& added = node.links.emplace_back();
      added.name = link.at("name").get<std::string>();
      added.set = SetOf(link);
      const json from = link.value("speed_from", json());
      if (!from.is_null()) added.set_from = from.get<std::string>();
    }
    for (const json& job : read.at("jobs")) {
      if (!job.at("ranks").empty()) {
        node.jobs.push_back(job.at("name").get<std::string>());
      }
      for (const json& rank : job.at("ranks")) {
        if (rank.value("closed", false)) continue;
        node.attached.insert(job.at("name").get<std::string>());
      }
    }
    SLUICE_RETURN_IF_ERROR(ReadParents(read.at("links"), node));
  } catch (const json::exception& error) {
    return Unreadable(std::string("no such links (") + error.what() + ")");
  }
  FindGpus(node);
  return node;
}

std::map<std::string, LinkLimits> LimitsOf(const MeasurableNode& node) {
  const LimitFinder limits(node);
  std::map<std::string, LinkLimits> found;
  for (size_t i = 0; i < node.links.size(); ++i) {
    if (limits.of(i).any()) found[node.links[i].name] = limits.of(i);
  }
  return found;
}

std::string ConfigurationOf(const MeasurableNode& node) {
  const LimitFinder limits(node);
  // The configuration of a simulated node must list all of its links.
  const bool sim = IsSimulated(node.driver);
  std::string links;
  for (size_t i = 0; i < node.links.size(); ++i) {
    const MeasurableLink& link = node.links[i];
    if (!sim && !limits.of(i).any()) continue;
    const std::string parent =
        sim && link.parent ? node.links[*link.parent].name : "";
    links += "  " + LinkToml(link, limits.of(i), parent) + ",\n";
  }
  std::string text = fmt::format("[{}]\nlinks = [\n{}]\n", node.driver, links);
  if (sim) {
    const std::string names = absl::StrJoin(
        node.gpu_links, ", ", [](std::string* out, const std::string& name) {
          *out += Quoted(name);
        });
    text += fmt::format("gpu_links = [{}]\n", names);
  }
  return text;
}

std::string RenderMeasured(const MeasurableNode& node) {
  Table table({"LINK", "GPUS", ">TO GPU", ">TO HOST", ">BOTH: TO GPU",
               ">TO HOST", "SET BEFORE", "BY"});
  for (const MeasurableLink& link : node.links) {
    if (!link.measured) continue;
    table.Add({link.name, absl::StrJoin(link.gpus, ","),
               Speed(link.measured->h2d), Speed(link.measured->d2h),
               Speed(link.measured->both_h2d), Speed(link.measured->both_d2h),
               SetText(link.set), link.set_from.empty() ? "-" : link.set_from});
  }
  return table.Text();
}

std::string MeasuredJson(const MeasurableNode& node, double seconds,
                         std::optional<bool> kept) {
  json links = json::array();
  for (const MeasurableLink& link : node.links) {
    if (!link.measured) continue;
    links.push_back(
        {{"name", link.name},
         {"parent",
          link.parent ? json(node.links[*link.parent].name) : json(nullptr)},
         {"gpus", link.gpus},
         {"h2d_bytes_per_second", link.measured->h2d},
         {"d2h_bytes_per_second", link.measured->d2h},
         {"both_h2d_bytes_per_second", link.measured->both_h2d},
         {"both_d2h_bytes_per_second", link.measured->both_d2h},
         {"set", SetJson(link)}});
  }
  const json all = {{"driver", node.driver},
                    {"seconds", seconds},
                    {"links", links},
                    {"kept", kept ? json(*kept ? "holds" : "waits") : json()},
                    {"configuration", ConfigurationOf(node)}};
  return JsonLine(all);
}

}  // namespace sluice::ctl

// The parts of /metrics. Each part adds the families of one subject.
//
// Thread safety: pure.
#pragma once

#include <string>
#include <utility>

#include "daemon/core/snapshot.h"
#include "daemon/metrics/families.h"
#include "daemon/metrics/prometheus_text.h"
#include "proto/base/grant_page.h"

namespace sluice::daemon {

inline Labels GpuLabels(const GpuConfig& gpu) {
  return {{"gpu", std::to_string(gpu.index.value())}, {"UUID", gpu.uuid}};
}

inline Labels With(Labels labels, const char* name, std::string value) {
  labels.push_back({name, std::move(value)});
  return labels;
}

inline double Count(Bytes bytes) { return static_cast<double>(bytes.count()); }

struct FamilyText {
  const char *name, *help;
};

// Adds the number and duration of late copies. for_each_series(add) calls
// add(labels, late) for each series.
void AddLate(FamilyText copies, FamilyText seconds, const auto& for_each_series,
             Families& to) {
  const auto each = [&](FamilyText text, auto value) {
    to.Add(text.name, text.help, prometheus::MetricType::Counter);
    for_each_series([&](const Labels& labels, const LateDirections& late) {
      to.Value(With(labels, "direction", "h2d"), value(late[kH2d]));
      to.Value(With(labels, "direction", "d2h"), value(late[kD2h]));
    });
  };
  each(copies,
       [](const LateCopies& l) { return static_cast<double>(l.copies); });
  each(seconds, [](const LateCopies& l) { return l.seconds; });
}

// Adds pools, and the leases that wait for them.
void AddMemory(const Snapshot& from, Families& to);
// Adds the limits of users.
void AddLimits(const Snapshot& from, Audience audience, Families& to);
// Adds copies between GPUs and host memory, and links.
void AddCopies(const Snapshot& from, Families& to);
// Adds series by job and user, for operators only. REQUIRES: `from` has
// statistics.
void AddJobs(const Snapshot& from, Families& to);
void AddJobCopies(const Snapshot& from, Families& to);

}  // namespace sluice::daemon

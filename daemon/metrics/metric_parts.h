// The parts of /metrics. Each part adds the families of one subject.
//
// Thread safety: pure.
#pragma once

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <cmath>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/snapshot.h"
#include "daemon/metrics/prometheus_text.h"
#include "proto/base/grant_page.h"

namespace sluice::daemon {

using Labels = std::vector<prometheus::ClientMetric::Label>;

class Families {
 public:
  void Add(const char* name, const char* help, prometheus::MetricType type) {
    families_.push_back({name, help, type, {}});
  }
  void Value(Labels labels, double value) {
    prometheus::MetricFamily& family = families_.back();
    prometheus::ClientMetric metric;
    metric.label = std::move(labels);
    (family.type == prometheus::MetricType::Counter ? metric.counter.value
                                                    : metric.gauge.value) =
        value;
    family.metric.push_back(std::move(metric));
  }
  void Gauge(const char* name, const char* help, double value) {
    Add(name, help, prometheus::MetricType::Gauge);
    Value({}, value);
  }
  void Counter(const char* name, const char* help, double value) {
    Add(name, help, prometheus::MetricType::Counter);
    Value({}, value);
  }
  template <typename E>
  void CounterBy(const char* name, const char* help, const char* label,
                 const CountsBy<E>& values) {
    Add(name, help, prometheus::MetricType::Counter);
    values.ForEach([&](std::string_view key, uint64_t value) {
      Value({{label, std::string(key)}}, static_cast<double>(value));
    });
  }
  void AddHistogram(const char* name, const char* help, const Histogram& from) {
    Add(name, help, prometheus::MetricType::Histogram);
    HistogramValue({}, from);
  }
  void HistogramValue(Labels labels, const Histogram& from) {
    prometheus::ClientMetric metric;
    metric.label = std::move(labels);
    metric.histogram.sample_count = from.count();
    metric.histogram.sample_sum = from.sum();
    uint64_t cumulative = 0;
    for (size_t i = 0; i <= from.bounds().size(); ++i) {
      cumulative += from.counts()[i];
      metric.histogram.bucket.push_back(
          {cumulative, i < from.bounds().size() ? from.bounds()[i] : INFINITY});
    }
    families_.back().metric.push_back(std::move(metric));
  }

  std::string Text() const {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, families_);
    return out.str();
  }

 private:
  std::vector<prometheus::MetricFamily> families_;
};

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

// Adds pools, waiting leases, copies, links, budgets and quotas.
void AddNode(const Snapshot& from, Audience audience, Families& to);
// Adds series by job and user, for operators only. REQUIRES: `from.stats`.
void AddJobs(const Snapshot& from, Families& to);

}  // namespace sluice::daemon

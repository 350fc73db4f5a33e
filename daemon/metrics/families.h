// Collects metrics by family, and formats them as Prometheus' text.
//
// Thread safety: values.
#pragma once

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <cmath>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/snapshot.h"

namespace sluice::daemon {

using Labels = std::vector<prometheus::ClientMetric::Label>;

class Families {
 public:
  void Add(const char* name, const char* help, prometheus::MetricType type) {
    families_.push_back({name, help, type, {}});
  }
  // Adds a value to the last family.
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
  // Adds a histogram to the last family.
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

}  // namespace sluice::daemon

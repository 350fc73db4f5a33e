#include <utility>

#include "daemon/metrics/metric_parts.h"

namespace sluice::daemon {
namespace {

using prometheus::MetricType;

void AddSwap(const Snapshot& from, Families& to) {
  to.Add("sluice_swap_bytes_total",
         "Bytes copied between a GPU and host memory, by ranks' use pages.",
         MetricType::Counter);
  for (size_t i = 0; i < from.gpus.size(); ++i) {
    const Labels labels = GpuLabels(from.gpus[i].gpu);
    const GpuStats& gpu = from.stats->gpus[i];
    to.Value(With(labels, "direction", "h2d"), Count(gpu.h2d));
    to.Value(With(labels, "direction", "d2h"), Count(gpu.d2h));
  }
}

// Only copies with a stated deadline can be late.
void AddLateOfGpus(const Snapshot& from, Families& to) {
  AddLate(
      {"sluice_late_copies_total",
       "Copies whose grant came after compute needed them."},
      {"sluice_late_copy_seconds_total",
       "Time for which a late copy waited for its grant, over ranks."},
      [&](const auto& add) {
        for (size_t i = 0; i < from.gpus.size(); ++i) {
          add(GpuLabels(from.gpus[i].gpu), from.stats->gpus[i].late);
        }
      },
      to);
}

void AddLinks(const Snapshot& from, Families& to) {
  to.Add("sluice_link_capacity_bytes_per_second",
         "What a link between GPUs and host memory carries; only where known.",
         MetricType::Gauge);
  for (const LinkSpeed& link : from.links) {
    for (const auto& [direction, speed] :
         {std::pair{"h2d", link.h2d_bytes_per_second},
          std::pair{"d2h", link.d2h_bytes_per_second},
          std::pair{"both", link.both_bytes_per_second}}) {
      if (speed > 0) {
        to.Value({{"link", link.name},
                  {"parent", link.parent},
                  {"direction", direction}},
                 speed);
      }
    }
  }
}

}  // namespace

void AddCopies(const Snapshot& from, Families& to) {
  AddSwap(from, to);
  AddLateOfGpus(from, to);
  AddLinks(from, to);
}

}  // namespace sluice::daemon

#include "planner/stream/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "planner/stream/stream_shape.h"
#include "planner/stream/transients.h"

namespace sluice::stream {
namespace {

constexpr int64_t kFirstChunk = 512, kLeastChunk = 64;
constexpr int kDepths[] = {1, 2, 4};
constexpr double kAlphas[] = {1, 0.75, 0.5, 0.25, 0};
constexpr int64_t kMostRerunLayers = 8;
constexpr double kNever = std::numeric_limits<double>::infinity();

int64_t WorkingBytes(const StreamOptions& options) {
  return (RingBytes(options) + TransientBytes(options)).count();
}

// Returns fractions for the open free classes. A class that can be kept by rows
// keeps `keep`; `alpha` of its other rows is swapped.
FractionMap Share(const SettingsQuestion& q, double keep, double alpha) {
  FractionMap fractions = q.stream.fractions;
  for (const Class which : kFreeClasses) {
    const ClassTraits& c = Traits(which);
    if (!c.of(q.stream.model)) continue;
    const double kept = c.keep == Keep::kRows ? keep : 0;
    fractions.try_emplace(c.name, ClassFractions{kept, (1 - kept) * alpha});
  }
  return fractions;
}

// Returns fractions that keep as many rows as fit in HBM, evenly over classes.
// (The planner later divides that room by class.)
FractionMap ShareRoom(const SettingsQuestion& q, StreamOptions options) {
  const double alpha = options.alpha;
  options.fractions = Share(q, 0, alpha);
  if (!q.may_keep || q.stream.alpha >= 0) return options.fractions;
  const auto left = static_cast<double>(q.hbm.count() - WorkingBytes(options));
  options.fractions = Share(q, 1, alpha);
  const auto all = static_cast<double>(StreamShape(options).kept_bytes());
  return Share(q, all > 0 ? std::clamp(left / all, 0.0, 1.0) : 0, alpha);
}

// Returns fractions that keep in HBM as many last chunks as fit there.
FractionMap KeepChunks(const SettingsQuestion& q, StreamOptions options) {
  if (!q.may_keep) return options.fractions;
  const auto left = static_cast<double>(q.hbm.count() - WorkingBytes(options));
  const auto kept = [&options](double keep) {
    StreamOptions tried = options;
    tried.fractions = KeepLastChunks(options.fractions, keep);
    return static_cast<double>(KeptBytes(tried).count());
  };
  const double already = kept(0), all = kept(1) - already;
  return KeepLastChunks(
      options.fractions,
      all > 0 ? std::clamp((left - already) / all, 0.0, 1.0) : 0);
}

bool Fits(const SettingsQuestion& q, const StreamOptions& options) {
  const StreamShape shape(options);
  return shape.host_bytes() <= q.host.count() &&
         WorkingBytes(options) + shape.kept_bytes() + shape.resident_bytes() <=
             q.hbm.count();
}

// Swaps only what must be swapped, keeps last chunks in HBM, and reruns as few
// first chunks as host memory requires, or all if even these do not suffice.
StreamOptions RunAgain(const SettingsQuestion& q, StreamOptions options) {
  options.alpha = 0;
  options.fractions = DropFree(q.stream.model, q.stream.fractions);
  options.fractions = KeepChunks(q, options);
  const int64_t chunks = options.layout.chunks();
  if (q.rerun.has_value()) {
    options.rerun_chunks = RerunChunks(*q.rerun, chunks);
    return options;
  }
  int64_t short_of = -1, enough = chunks;
  while (enough - short_of > 1) {
    options.rerun_chunks = (enough + short_of) / 2;
    (Fits(q, options) ? enough : short_of) = options.rerun_chunks;
  }
  options.rerun_chunks = enough;
  return options;
}

// Returns whether chunks may run again: the user has not excluded it, and no
// free class is requested to be kept or swapped.
bool MayRunAgain(const SettingsQuestion& q) {
  return q.rerun.value_or(1) > 0 && q.stream.alpha <= 0 &&
         std::ranges::none_of(q.stream.fractions, [](const auto& f) {
           return Traits(FindClass(f.first)->which).free() &&
                  f.second != ClassFractions{0, 0};
         });
}

// Returns the numbers of layers to run again together.
std::vector<int64_t> RerunLayers(const SettingsQuestion& q) {
  if (q.rerun_layers.has_value()) return {*q.rerun_layers};
  std::vector<int64_t> tried;
  for (int64_t n = 1; n <= std::min(q.stream.model.layers, kMostRerunLayers);
       n *= 2) {
    tried.push_back(n);
  }
  return tried;
}

}  // namespace

std::vector<Settings> SettingsOf(const SettingsQuestion& q, int64_t chunk) {
  std::vector<Settings> all;
  const bool may_stay = q.may_keep && q.stream.alpha < 0 &&
                        q.stream.fractions.empty() && !q.rerun.has_value();
  if (may_stay) {
    all.push_back({.chunk = chunk,
                   .prefetch = q.prefetch.value_or(1),
                   .order = q.order.value_or(BackwardOrder::kKeysOuter),
                   .resident = true});
  }
  std::vector<int64_t> rerun_layers = {q.rerun_layers.value_or(1)};
  if (MayRunAgain(q)) rerun_layers = RerunLayers(q);
  for (const BackwardOrder order :
       {BackwardOrder::kKeysOuter, BackwardOrder::kQueriesOuter}) {
    if (q.order.value_or(order) != order) continue;
    for (const int depth : kDepths) {
      if (q.prefetch.has_value() && depth != kDepths[0]) continue;
      for (const int64_t layers : rerun_layers) {
        all.push_back({.chunk = chunk,
                       .prefetch = q.prefetch.value_or(depth),
                       .order = order,
                       .rerun_layers = layers});
      }
    }
  }
  return all;
}

StreamOptions StreamOf(const SettingsQuestion& q, const Settings& settings) {
  StreamOptions options = q.stream;
  options.layout =
      ChunkLayout(q.seq_len, settings.chunk, q.stream.layout.ranks());
  options.prefetch_depth = settings.prefetch;
  options.order = settings.order;
  if (settings.resident) {
    options.fractions = KeepEverything(options.model);
    return options;
  }
  options.rerun_layers = settings.rerun_layers;
  const bool may_rerun = MayRunAgain(q);
  if (q.rerun.value_or(0) > 0 && may_rerun) return RunAgain(q, options);
  const double asked = q.stream.alpha;
  for (const double alpha : kAlphas) {
    options.alpha = asked >= 0 ? asked : alpha;
    options.fractions = ShareRoom(q, options);
    if (Fits(q, options)) return options;
    StreamOptions last = options;
    last.fractions = Share(q, 0, options.alpha);
    last.fractions = KeepChunks(q, last);
    if (Fits(q, last)) return last;
    if (asked >= 0) break;
  }
  return may_rerun ? RunAgain(q, options) : options;
}

Settings LeastHost(const SettingsQuestion& q, Settings settings) {
  if (!MayRunAgain(q)) return settings;
  SettingsQuestion all = q;
  all.rerun = q.rerun.value_or(1);
  Settings best = settings;
  std::optional<Bytes> least;
  for (const int64_t layers : RerunLayers(q)) {
    settings.rerun_layers = layers;
    const StreamOptions options = StreamOf(all, settings);
    const Bytes host = HostBytes(options);
    if (least.has_value() && host >= *least) continue;
    least = host;
    best = Settled(settings, options);
  }
  return best;
}

int64_t RerunChunks(double part, int64_t chunks) {
  return static_cast<int64_t>(std::ceil(part * static_cast<double>(chunks)));
}

Settings Settled(Settings settings, const StreamOptions& options) {
  settings.rerun_chunks = options.rerun_chunks;
  const auto kept = options.fractions.find(Traits(Class::kO).name);
  if (kept != options.fractions.end() && !settings.resident) {
    settings.kept = kept->second.keep;
  }
  return settings;
}

double PredictSeconds(const SettingsQuestion& q, const Settings& settings,
                      const std::vector<plan::SegmentKind>& recorded,
                      const LinkSpeeds& links) {
  if (recorded.empty()) return kNever;
  const StreamOptions options = StreamOf(q, settings);
  return Fits(q, options) ? StepSeconds(options, recorded, links) : kNever;
}

ChunkRange ChunksOf(const SettingsQuestion& q) {
  return {.first = q.chunk.value_or(std::min(kFirstChunk, q.seq_len)),
          .least = q.chunk.value_or(kLeastChunk),
          .most = q.chunk.value_or(q.seq_len)};
}

const char* Name(BackwardOrder order) {
  return order == BackwardOrder::kKeysOuter ? "keys" : "queries";
}

std::string ToString(const Settings& s) {
  if (s.resident) {
    return fmt::format("chunk {}, everything kept on the GPU", s.chunk);
  }
  std::string text = fmt::format("chunk {}, prefetch {}, {} outer in backward",
                                 s.chunk, s.prefetch, Name(s.order));
  if (s.kept > 0) {
    text += fmt::format(", the last {:.0f} % kept on the GPU", 100 * s.kept);
  }
  if (s.rerun_chunks > 0) {
    text += fmt::format(", the first {} chunks run again by {} layers",
                        s.rerun_chunks, s.rerun_layers);
  }
  return text;
}

}  // namespace sluice::stream

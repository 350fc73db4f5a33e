#include "proto/plan/codec_parts.h"

#include <fmt/format.h>

#include "proto/plan/validate.h"

namespace sluice::plan {
namespace {

using nlohmann::json;

Buffer ReadBuffer(FieldReader in, int64_t end) {
  Buffer buffer;
  if (in.Entries() != 4) {
    in.Refuse("", "is not [id, lower, upper, size]");
    return buffer;
  }
  buffer.id = in.At(0, "id", 0, kMaxId);
  buffer.lower = in.At(1, "lower", 0, kMaxTime);
  buffer.upper = in.At(2, "upper", 0, kMaxTime);
  buffer.size = Bytes(in.At(3, "size", 0, kMaxAmount));
  if (buffer.lower >= buffer.upper) {
    in.Refuse("upper", fmt::format("{} is not above lower = {}", buffer.upper,
                                   buffer.lower));
  }
  if (buffer.upper > end) {
    in.Refuse("upper", fmt::format("{} is beyond the trace's end = {}",
                                   buffer.upper, end));
  }
  return buffer;
}

}  // namespace

Bytes ReadBytes(FieldReader& in, const char* key) {
  return Bytes(in.Int(key, 0, kMaxAmount));
}

std::string ReadName(FieldReader& in, std::set<std::string>* taken) {
  std::string name = in.Text("name", kMaxNameBytes);
  if (in.ok() && name.empty()) in.Refuse("name", "is empty");
  if (in.ok() && !taken->insert(name).second) {
    in.Refuse("name", fmt::format("'{}' occurs twice", name));
  }
  return name;
}

void ReadClassName(FieldReader& in, std::set<std::string>* taken,
                   std::string* kind, std::string* name) {
  *kind = in.Has("kind") ? in.Text("kind", kMaxNameBytes) : kOneKind;
  *name = in.Text("name", kMaxNameBytes);
  if (in.ok() && name->empty()) in.Refuse("name", "is empty");
  if (in.ok() && !taken->insert(*kind + '\0' + *name).second) {
    in.Refuse("name", fmt::format("'{}' occurs twice", FullName(*kind, *name)));
  }
}

void WriteKindName(const std::string& kind, json* written) {
  if (kind != kOneKind) (*written)["kind"] = kind;
}

json Write(const Trace& trace) {
  json buffers = json::array();
  for (const Buffer& b : trace.buffers) {
    buffers.push_back({b.id, b.lower, b.upper, b.size.count()});
  }
  return {{"buffers", std::move(buffers)},
          {"end", trace.end},
          {"alignment", trace.alignment.count()}};
}

json Write(const Placement& placement) {
  json offsets = json::array();
  for (const Bytes b : placement.offsets) offsets.push_back(b.count());
  return {{"offsets", std::move(offsets)},
          {"peak", placement.peak.count()},
          {"lower_bound", placement.lower_bound.count()},
          {"proved_by", placement.proved_by},
          {"method", placement.method},
          {"seconds", placement.seconds}};
}

Trace ReadTrace(FieldReader in) {
  Trace trace;
  trace.end = in.Int("end", 0, kMaxTime);
  trace.alignment = Bytes(in.Int("alignment", 1, int64_t{1} << 30));
  const int64_t alignment = trace.alignment.count();
  if ((alignment & (alignment - 1)) != 0) {
    in.Refuse("alignment", fmt::format("{} is no power of two", alignment));
  }
  std::set<int64_t> ids;
  int64_t total = 0;
  in.Each("buffers", kMaxBuffers, [&](FieldReader row, size_t) {
    const Buffer buffer = ReadBuffer(row, trace.end);
    if (row.ok() && !ids.insert(buffer.id).second) {
      row.Refuse("id", fmt::format("{} occurs twice", buffer.id));
    }
    total += RoundUp(buffer.size, trace.alignment).count();
    if (total > kMaxTotal) {
      row.Refuse("size", fmt::format("the trace's sizes sum to more than {}",
                                     kMaxTotal));
    }
    trace.buffers.push_back(buffer);
  });
  in.Finish();
  return trace;
}

Placement ReadPlacement(FieldReader in) {
  Placement placement;
  in.Each("offsets", kMaxBuffers, [&](FieldReader element, size_t) {
    placement.offsets.push_back(Bytes(element.Self(0, kMaxTotal)));
  });
  placement.peak = Bytes(in.Int("peak", 0, kMaxTotal));
  placement.lower_bound =
      Bytes(in.Int("lower_bound", 0, placement.peak.count()));
  placement.proved_by =
      in.Choice("proved_by", {"max_live", "search", "cbc", "none"});
  placement.method = in.Text("method", kMaxNameBytes);
  placement.seconds = in.Number("seconds", 0, kMaxSeconds);
  in.Finish();
  return placement;
}

json WriteUnits(const std::vector<UnitPlan>& units) {
  json list = json::array();
  for (const UnitPlan& unit : units) {
    list.push_back(
        {{"trace", Write(unit.trace)}, {"placement", Write(unit.placement)}});
  }
  return list;
}

std::vector<UnitPlan> ReadUnits(FieldReader& in, const char* key) {
  std::vector<UnitPlan> units;
  in.Each(key, kMaxUnits, [&units](FieldReader element, size_t) {
    UnitPlan unit;
    unit.trace = ReadTrace(element.Object("trace"));
    unit.placement = ReadPlacement(element.Object("placement"));
    if (!element.ok()) return;
    if (unit.trace.buffers.size() > kMaxUnitBuffers) {
      return element.Refuse(
          "trace", fmt::format("{} buffers; the limit is {}",
                               unit.trace.buffers.size(), kMaxUnitBuffers));
    }
    const absl::Status valid = ValidatePlacement(unit.trace, unit.placement);
    if (!valid.ok()) {
      return element.Refuse("placement", std::string(valid.message()));
    }
    element.Finish();
    units.push_back(std::move(unit));
  });
  return units;
}

std::string Finish(json document, const char* format) {
  document["format"] = format;
  document["version"] = kFormatVersion;
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace sluice::plan

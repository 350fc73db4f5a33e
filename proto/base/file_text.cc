#include "proto/base/file_text.h"

#include <fstream>

namespace sluice {

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Bytes MemoryInfo(const std::string& line, const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  for (std::string unit; file >> key >> kib; std::getline(file, unit)) {
    if (key == line + ":") return KiB(kib);
  }
  return Bytes(0);
}

std::istringstream ProcessStat(const std::string& process) {
  const std::string text = TextOf("/proc/" + process + "/stat");
  const size_t name_end = text.rfind(')');  // a name may hold anything
  return std::istringstream(
      name_end == std::string::npos ? "" : text.substr(name_end + 1));
}

}  // namespace sluice

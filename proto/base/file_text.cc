#include "proto/base/file_text.h"

#include <fstream>

namespace sluice {

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::istringstream ProcessStat(const std::string& process) {
  const std::string text = TextOf("/proc/" + process + "/stat");
  const size_t name_end = text.rfind(')');  // a name may contain any character
  return std::istringstream(
      name_end == std::string::npos ? "" : text.substr(name_end + 1));
}

}  // namespace sluice

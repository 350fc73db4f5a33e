#include "proto/base/file_text.h"

#include <fstream>
#include <sstream>

namespace sluice {

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace sluice

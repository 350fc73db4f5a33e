// What reads files of strangers, and what is done with one input of each: it
// aborts unless the answer is within its limits or one clear line.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace sluice::fuzz {

struct Reader {
  const char* name;  // its folder in corpus/
  void (*read)(std::string_view bytes);
};
const std::vector<Reader>& Readers();

void ReadAsTrace(std::string_view bytes);     // sluicectl plan memory
void ReadAsNode(std::string_view bytes);      // sluicectl plan swap
void ReadAsModel(std::string_view bytes);     // sluicectl plan train --model
void ReadAsHardware(std::string_view bytes);  // … --hardware

// Aborts unless a complaint is InvalidArgument in one printable line.
void CheckComplaint(const absl::Status& status);

}  // namespace sluice::fuzz

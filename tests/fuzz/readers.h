// The readers of foreign bytes. Each reads one input, and aborts unless the
// result is within the reader's limits or one clear line of error.
#pragma once

#include <ostream>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace sluice::fuzz {

struct Reader {
  const char* name;  // its folder in corpus/
  void (*read)(std::string_view bytes);

  // googletest prints a case's parameter with this function.
  friend void PrintTo(const Reader& reader, std::ostream* out) {
    *out << reader.name;
  }
};
// Returns the readers of the library that a program links: of the daemon and
// its clients, or of sluicectl's files.
const std::vector<Reader>& Readers();

// Files that users give to sluicectl.
void ReadAsTrace(std::string_view bytes);     // sluicectl plan memory
void ReadAsNode(std::string_view bytes);      // sluicectl plan swap
void ReadAsModel(std::string_view bytes);     // sluicectl plan train --model
void ReadAsHardware(std::string_view bytes);  // sluicectl plan train --hardware
// The operator's configuration file.
void ReadAsConfig(std::string_view bytes);  // sluiced.toml
// Messages between processes.
void ReadAsSession(std::string_view bytes);  // clients to the daemon
void ReadAsAnswer(std::string_view bytes);   // the daemon to a client
void ReadAsHttp(std::string_view bytes);     // the request of one connection
void ReadAsPlan(std::string_view bytes);     // profiles, plans
void ReadAsNotification(std::string_view bytes);  // a daemon to its keeper
// Files and memory that an earlier daemon left.
void ReadAsPolicy(std::string_view bytes);  // the administrators' settings
void ReadAsState(std::string_view bytes);   // the state's slots and ring
void ReadAsRows(std::string_view bytes);    // the rows in a state

// Aborts unless `line` is one printable line of fewer than 2000 bytes.
void CheckLine(std::string_view line);
// Aborts unless `status` is InvalidArgument with one printable line.
void CheckComplaint(const absl::Status& status);

}  // namespace sluice::fuzz

// What reads bytes of others, and what is done with one input of each: it
// aborts unless the answer is within its limits or one clear line.
#pragma once

#include <ostream>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace sluice::fuzz {

struct Reader {
  const char* name;  // its folder in corpus/
  void (*read)(std::string_view bytes);

  // For googletest, which prints a case's parameter.
  friend void PrintTo(const Reader& reader, std::ostream* out) {
    *out << reader.name;
  }
};
// Those of the library that a program links: the daemon's and its clients', or
// the desk's.
const std::vector<Reader>& Readers();

// The desk's: files that people give sluicectl.
void ReadAsTrace(std::string_view bytes);     // sluicectl plan memory
void ReadAsNode(std::string_view bytes);      // sluicectl plan swap
void ReadAsModel(std::string_view bytes);     // sluicectl plan train --model
void ReadAsHardware(std::string_view bytes);  // … --hardware
// A file of the operator.
void ReadAsConfig(std::string_view bytes);  // sluiced.toml
// What processes say to each other.
void ReadAsSession(std::string_view bytes);       // clients to the daemon
void ReadAsAnswer(std::string_view bytes);        // the daemon to a client
void ReadAsHttp(std::string_view bytes);          // one connection's request
void ReadAsPlan(std::string_view bytes);          // profiles, plans
void ReadAsNotification(std::string_view bytes);  // a daemon to its keeper
// What an earlier daemon left.
void ReadAsPolicy(std::string_view bytes);  // what administrators set
void ReadAsState(std::string_view bytes);   // slots and ring, as memory
void ReadAsRows(std::string_view bytes);    // what is in them

// Aborts unless it is one printable line of at most 2000 bytes.
void CheckLine(std::string_view line);
// Aborts unless a complaint is InvalidArgument in one printable line.
void CheckComplaint(const absl::Status& status);

}  // namespace sluice::fuzz

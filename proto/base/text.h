// Formats text for people, and makes foreign text safe to show in messages.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace sluice {

// Replaces each byte of a control character, of one that turns text round, or
// of invalid UTF-8 by '?'. The result stays on its line, moves no cursor, and
// may be a protobuf string (a packet with invalid UTF-8 would be dropped).
std::string Printable(std::string text);

// Cuts `text` after 1,000 bytes (and appends " ..."), then calls Printable.
std::string PrintableLine(std::string text);

std::string FirstLine(const std::string& text);

// Quotes `word` for a shell if it needs quotes, for commands that are printed
// for people to run.
std::string ShellWord(const std::string& word);

// Formats "2 d 4 h", "3 min 12 s", "10 min", "5 s", "0.52 s", "2.5 ms".
std::string FormatSpan(absl::Duration span);

}  // namespace sluice

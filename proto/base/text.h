// Makes foreign text safe to show inside messages.
//
// Thread safety: pure functions.
#pragma once

#include <string>

namespace sluice {

// Replaces each byte of a control character or of invalid UTF-8 by '?'. The
// result stays on its line and moves no cursor. It may be a protobuf string; a
// packet with invalid UTF-8 would be dropped.
std::string Printable(std::string text);

// Does the same and cuts the result to a screen's length, for messages that
// quote a file.
std::string PrintableLine(std::string text);

// Returns the first line without its line break.
std::string FirstLine(const std::string& text);

// Quotes `word` for a shell, with single quotes if it needs them. For commands
// that are printed for people to run.
std::string ShellWord(const std::string& word);

}  // namespace sluice

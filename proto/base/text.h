// Makes foreign text safe to show inside messages.
//
// Thread safety: pure functions.
#pragma once

#include <string>

namespace sluice {

// Replaces each byte of a control character or of invalid UTF-8 by '?'. The
// result stays on its line, moves no cursor, and may be a string of a protobuf;
// a packet with invalid UTF-8 would be dropped.
std::string Printable(std::string text);

// The same, cut to the length of a screen, for messages that quote a file.
std::string PrintableLine(std::string text);

// Returns the first line without its line break.
std::string FirstLine(const std::string& text);

// Quotes `word` for a shell, with single quotes if it needs them. Used for
// printed commands.
std::string ShellWord(const std::string& word);

}  // namespace sluice
